"""A lock on a participant's folder: a second process would overwrite what the first has saved."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from efvfl.errors import CheckpointError, ConfigError
from efvfl.util.files import private

log = logging.getLogger("efvfl")


class Lock:
    """An exclusive lock on a folder, until it is released or the process ends for any reason."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder, and make it if need be; ConfigError names the process that has it."""
        path = folder / "lock"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it will hold models, ids and labels in plain form
            mode = folder.stat().st_mode & 0o777
            self._file = open(path, "a+", encoding="utf-8", opener=private)  # noqa: SIM115
        except OSError as error:
            raise CheckpointError(f"cannot write {path}: {error}.") from error
        if mode & 0o077:  # it was there before, and may be somebody's whole home: its owner decides
            log.warning(
                "%s is open to other users (mode %03o), and will hold models and ids: chmod 700 it", folder, mode
            )
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            owner = self._file.read(20).strip() or "?"
            self._file.close()
            raise ConfigError(
                f"process {owner} works in {folder} already: stop it first, or choose another folder with --dir."
            ) from error
        try:
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()
        except OSError as error:
            raise CheckpointError(f"cannot write {path}: {error}.") from error

    def release(self) -> None:
        """Release the lock."""
        self._file.close()


def owner_of(folder: Path) -> int:
    """Return the process that has a folder locked; 0: none has. A number that was left behind counts for nothing."""
    try:
        with open(folder / "lock", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                owner = file.read(20).strip()
                return int(owner) if owner.isdecimal() else 0
    except OSError:
        return 0
    return 0
