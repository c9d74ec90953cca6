"""Certificates: real handshakes, modes of files, crashes, and every refusal with its words."""

import os
import re
import shutil
import socket
import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from efvfl.errors import ConfigError
from efvfl.network.identity import authority
from efvfl.network.identity.authority import make
from efvfl.network.identity.certificates import Credentials, certain_name, days_left, expiry_warning, load

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ready") / "certs"
    make(folder, ["server", "bank", "clinic"], hosts=["localhost", "127.0.0.1", "::1"])
    return folder


@pytest.fixture
def folder(ready: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(ready, tmp_path / "certs"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def parsed(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def refusal(folder: Path, name: str = "bank", now: datetime | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, name, now=now)
    return str(caught.value)


# Handshakes.


def context(folder: Path, name: str, protocol: int) -> ssl.SSLContext:
    made = ssl.SSLContext(protocol)
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13
    made.load_verify_locations(folder / "ca.crt")
    made.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return made


def shake(server: tuple[Path, str], client: tuple[Path, str], host: str = "server") -> dict[str, Any]:
    """Connect the two and return the client's certificate as the server sees it; raise why one refused the other."""
    near, far = socket.socketpair()
    near.settimeout(5)
    far.settimeout(5)

    def serve() -> Any:
        with near, context(*server, ssl.PROTOCOL_TLS_SERVER).wrap_socket(near, server_side=True) as stream:
            stream.sendall(b"!")
            return stream.getpeercert()

    errors: list[BaseException | None] = []
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        try:
            with far, context(*client, ssl.PROTOCOL_TLS_CLIENT).wrap_socket(far, server_hostname=host) as stream:
                # In TLS 1.3 the client learns only by reading that it was refused.
                assert stream.recv(1) == b"!"
        except OSError as error:
            errors.append(error)
        errors.append(served.exception())
    for found in sorted(filter(None, errors), key=lambda each: not isinstance(each, ssl.SSLCertVerificationError)):
        raise found
    return dict(served.result())


@pytest.mark.parametrize("host", ["server", "localhost", "127.0.0.1", "::1"])
def test_mutual_tls_works(ready: Path, host: str) -> None:
    peer = shake((ready, "server"), (ready, "bank"), host)
    assert peer["subject"] == ((("commonName", "bank"),),)
    assert peer["subjectAltName"] == (("DNS", "bank"),)


def test_the_server_is_refused_under_another_name(ready: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake((ready, "server"), (ready, "bank"), "other")


def test_a_party_cannot_pose_as_the_server_nor_the_server_as_a_party(ready: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        shake((ready, "bank"), (ready, "clinic"), "bank")
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        shake((ready, "server"), (ready, "server"))


def test_a_foreign_ca_is_refused_by_both_ends(ready: Path, tmp_path: Path) -> None:
    make(tmp_path / "foreign", ["server", "bank"])
    foreign = tmp_path / "foreign"
    for server, client in ((foreign, ready), (ready, foreign)):
        # The stranger trusts the right CA, so that the other end has to notice.
        shutil.copy(ready / "ca.crt", foreign / "ca.crt")
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer certificate"):
            shake((server, "server"), (client, "bank"))


@pytest.mark.parametrize("late", ["server", "bank"])
def test_an_expired_certificate_is_refused(tmp_path: Path, late: str) -> None:
    make(tmp_path, [late], days=30, now=NOW - 31 * DAY)
    make(tmp_path, ["server", "bank"])
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        shake((tmp_path, "server"), (tmp_path, "bank"))


def test_a_party_that_was_added_later_connects(folder: Path) -> None:
    make(folder, ["harbour"])
    assert shake((folder, "server"), (folder, "harbour"))["subjectAltName"] == (("DNS", "harbour"),)


@pytest.mark.parametrize(
    ("common", "alternative", "expected"),
    [
        (["bank"], ["bank"], "bank"),
        (["bank"], ["other", "bank"], "bank"),
        (["bank"], ["BANK"], None),
        (["bank"], [], None),
        ([], ["bank"], None),
        (["bank", "clinic"], ["bank", "clinic"], None),
        ([""], [""], None),
        (["b\x00k"], ["b\x00k"], None),
        (["\xff"], ["\xff"], None),
    ],
)
def test_a_certain_name(common: list[str], alternative: list[str], expected: str | None) -> None:
    subject = tuple((("commonName", name),) for name in common)
    assert (
        certain_name({"subject": subject, "subjectAltName": tuple(("DNS", name) for name in alternative)}) == expected
    )
    assert certain_name({"subject": subject, "subjectAltName": tuple(("email", name) for name in alternative)}) is None


def test_an_unencrypted_peer_has_no_name() -> None:
    assert certain_name(None) is None


# Files.


def test_what_is_in_a_certificate(ready: Path) -> None:
    ca, server, bank = (parsed(ready / f"{name}.crt") for name in ("ca", "server", "bank"))
    limits = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert limits.critical
    assert limits.value == x509.BasicConstraints(ca=True, path_length=0)
    assert not bank.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    identifier = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    made = datetime.fromtimestamp((ready / "ca.crt").stat().st_mtime, UTC)
    for each in (ca, server, bank):
        authority = each.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
        assert authority.key_identifier == identifier
        usage = each.extensions.get_extension_for_class(x509.KeyUsage).value
        assert (usage.key_cert_sign, usage.digital_signature) == (each is ca, each is not ca)
        key = each.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"
        assert made - timedelta(minutes=10) < each.not_valid_before_utc < made - timedelta(minutes=2)
        assert each.serial_number.bit_length() > 100
    assert len({each.serial_number for each in (ca, server, bank)}) == 3
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server", "localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("127.0.0.1"), ip_address("::1")]


def test_keys_are_never_open_to_others_even_without_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    born: dict[str, int] = {}
    really_open = os.open

    def spy(path: Any, flags: int, mode: int = 0o777, **rest: Any) -> int:
        descriptor = really_open(path, flags, mode, **rest)
        if flags & os.O_CREAT:
            born[Path(path).name] = stat.S_IMODE(os.fstat(descriptor).st_mode)
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    before = os.umask(0)
    try:
        made = make(tmp_path / "certs", ["server", "bank"])
    finally:
        os.umask(before)
    assert [path.name for path in made] == ["ca.key", "ca.crt", "server.key", "server.crt", "bank.key", "bank.crt"]
    assert mode(tmp_path / "certs") == 0o700
    assert {mode(path) for path in made if path.suffix == ".key"} == {0o600}
    assert [born[name] for name in born if ".key." in name] == [0o600] * 3
    assert set(made) == set((tmp_path / "certs").iterdir())


def test_nothing_is_overwritten_and_a_name_can_be_added(folder: Path) -> None:
    before = contents(folder)
    assert make(folder, ["server", "bank"]) == []
    made = make(folder, ["server", "bank", "bank", "harbour", "harbour"], hosts=["LocalHost"])
    assert made == [folder / "harbour.key", folder / "harbour.crt"]
    assert {name: data for name, data in contents(folder).items() if "harbour" not in name} == before
    assert load(folder, "harbour").ca == load(folder, "bank").ca


def test_a_certificate_without_its_key_is_left_alone(folder: Path) -> None:
    (folder / "bank.key").unlink()
    assert make(folder, ["bank"]) == []
    assert not (folder / "bank.key").exists()


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def late(source: Path, target: Path) -> None:
        target.write_bytes(b"of another process")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(ConfigError, match=r"cannot write .*ca\.key: .*File exists.* Nothing was overwritten"):
        make(tmp_path, ["bank"])
    assert contents(tmp_path) == {"ca.key": b"of another process"}


@pytest.mark.parametrize("files", range(6))
@pytest.mark.parametrize("call", ["link", "fsync"])
def test_after_a_crash_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, files: int
) -> None:
    real, left = getattr(os, call), [files if call == "link" else 2 * files]  # the folder is synced as well

    def failing(*arguments: Any) -> None:
        if not left[0]:
            raise OSError(28, "No space left on device")
        left[0] -= 1
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with pytest.raises(ConfigError, match="No space left on device"):
            make(tmp_path, ["server", "bank"])
    before = contents(tmp_path)
    assert len(before) == files
    assert len(make(tmp_path, ["server", "bank"])) == 6 - files
    assert contents(tmp_path).items() >= before.items()
    load(tmp_path, "server")
    load(tmp_path, "bank")


def test_a_certificate_never_outlives_its_ca(tmp_path: Path) -> None:
    make(tmp_path, ["server"], now=NOW - 3600 * DAY)
    make(tmp_path, ["bank"])
    assert parsed(tmp_path / "bank.crt").not_valid_after_utc == parsed(tmp_path / "ca.crt").not_valid_after_utc
    make(tmp_path / "long", ["bank"], days=5000)
    assert days_left((tmp_path / "long" / "ca.crt").read_bytes()) > 4999


# Refusals of make.


@pytest.mark.parametrize("name", ["", "-a", ".a", "_a", "a/b", "../a", "a b", "ä", "a\n", "a" * 64])
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    words = f"{re.escape(repr(name))} cannot be the name of a participant. Use at most 63 letters"
    with pytest.raises(ConfigError, match=words):
        make(tmp_path / "certs", ["server", name])
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, name)
    assert not (tmp_path / "certs").exists()


def test_names_at_the_limit(tmp_path: Path) -> None:
    for name in ("a" * 63, "7", "a.b-c_d", "x.crt"):
        make(tmp_path, [name])
        assert load(tmp_path, name).name == name


@pytest.mark.parametrize("name", ["ca", "CA", "Server"])
def test_reserved_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' cannot be a name: 'ca' is the authority, and 'server' has no cap"):
        make(tmp_path, [name])


def test_names_that_differ_only_in_case(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'Shop' and 'shop' differ only in case, which DNS names ignore. Rename"):
        make(tmp_path / "new", ["Shop", "shop"])
    with pytest.raises(ConfigError, match="'bank' and 'Bank' differ only in case"):
        make(folder, ["Bank"])


def test_no_names_and_no_days(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no name was given. Name the participants: `efvfl certs FILE.toml --out"):
        make(tmp_path, [])
    for days in (0, 36501):
        with pytest.raises(ConfigError, match=f"expected 1 to 36500 days of validity, got {days}"):
            make(tmp_path, ["bank"], days=days)


@pytest.mark.parametrize("host", ["", "a:50051", "10.0.0.256", "*.example.org", "a..b", "x" * 64, "a." * 127 + "abc"])
def test_hosts_that_cannot_be(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(repr(host))} is neither a host name nor an IP address. Give"):
        make(tmp_path, ["server"], hosts=[host])


def test_hosts_are_never_dropped_in_silence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"does not have the hosts new.org. Delete .*server.crt and server.key and run"
    ):
        make(folder, ["server", "harbour"], hosts=["localhost", "new.org"])
    with pytest.raises(ConfigError, match=r"does not have the hosts new.org. Add the name 'server'"):
        make(tmp_path / "new", ["bank"], hosts=["new.org"])


def test_a_folder_in_which_others_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(ConfigError, match=rf"others can write to .* \(mode 770\). Run `chmod 700 {tmp_path}`"):
        make(tmp_path, ["bank"])
    assert not contents(tmp_path)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot use .*file for certificates: .*File exists.* Name another"):
        make(tmp_path / "file", ["bank"])
    assert "Not a directory" in refusal(tmp_path / "file")


def test_a_ca_that_cannot_sign(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca.crt expired on .* start with a new authority: `efvfl init`"):
        make(folder, ["harbour"], now=NOW + 4000 * DAY)
    (folder / "ca.key").chmod(0o640)
    with pytest.raises(ConfigError, match=r"can use the key .*ca.key \(mode 640\). Run `chmod 600 .*ca.key`"):
        make(folder, ["harbour"])
    make(tmp_path / "foreign", ["bank"])
    shutil.copy(tmp_path / "foreign" / "ca.key", folder)
    with pytest.raises(ConfigError, match=r"ca.crt does not belong to ca.key. Bring both from the same place"):
        make(folder, ["harbour"])
    (folder / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca.key is missing, but ca.crt is there. Run this where the key is kept"):
        make(folder, ["harbour"])
    other = ed25519.Ed25519PrivateKey.generate()
    (folder / "ca.key").touch(0o600)
    (folder / "ca.key").write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(ConfigError, match=r"ca.key is not an elliptic curve key"):
        make(folder, ["harbour"])
    assert not list(folder.glob("harbour*"))


# Refusals of load.


def test_load_gives_the_files_and_shows_no_key(ready: Path) -> None:
    own = load(ready, "bank")
    files = contents(ready)
    assert own == Credentials("bank", files["ca.crt"], files["bank.crt"], files["bank.key"])
    assert repr(own) == "Credentials(name='bank')"


@pytest.mark.parametrize("file", ["ca.crt", "bank.crt", "bank.key"])
def test_a_missing_file(folder: Path, file: str) -> None:
    (folder / file).unlink()
    words = refusal(folder)
    assert f"{folder / file} is missing. Get a certificate: `efvfl request` here, `efvfl sign` at" in words
    assert f"`efvfl certs FILE.toml --out {folder}` makes all of them" in words


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o602])
def test_a_key_that_others_can_use(folder: Path, bits: int) -> None:
    (folder / "bank.key").chmod(bits)
    assert f"(mode {bits:o}). Run `chmod 600 {folder / 'bank.key'}`" in refusal(folder)
    (folder / "bank.key").chmod(0o400)
    load(folder, "bank")


@pytest.mark.parametrize("file", ["ca.crt", "bank.crt"])
def test_a_file_that_is_no_certificate(folder: Path, file: str) -> None:
    for data in (b"", b"rubbish", (folder / file).read_bytes()[:300], (folder / "bank.key").read_bytes()):
        (folder / file).write_bytes(data)
        assert f"{folder / file} is not a certificate in PEM form" in refusal(folder)


def test_a_file_that_is_no_key(folder: Path) -> None:
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    for data in (b"", locked, (folder / "bank.crt").read_bytes()):
        (folder / "bank.key").write_bytes(data)
        assert f"{folder / 'bank.key'} is not an unencrypted key in PEM form" in refusal(folder)


def test_a_key_of_another(folder: Path) -> None:
    shutil.copy(folder / "clinic.key", folder / "bank.key")
    words = refusal(folder)
    assert f"{folder / 'bank.key'} is not the key of {folder / 'bank.crt'}. Bring both from the same place" in words
    assert "renew it (`efvfl request` here, `efvfl sign` at the label holder, `efvfl accept` here" in words


def test_a_certificate_of_another_ca(folder: Path, tmp_path: Path) -> None:
    make(tmp_path / "foreign", ["bank"])
    shutil.copy(tmp_path / "foreign" / "ca.crt", folder)
    assert f"{folder / 'bank.crt'} was not signed by {folder / 'ca.crt'}. All participants need" in refusal(folder)


def test_a_forged_ca_of_the_same_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = parsed(folder / "ca.crt").subject
    (folder / "ca.key").unlink()
    (folder / "ca.crt").unlink()
    with monkeypatch.context() as patch:
        own = authority._subject
        patch.setattr(authority, "_subject", lambda name: subject if "CA" in name else own(name))
        make(folder, ["harbour"])
    load(folder, "harbour")
    assert "was not signed by" in refusal(folder, "bank")


def test_a_certificate_for_another_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ending in ("crt", "key"):
        shutil.copy(folder / f"clinic.{ending}", folder / f"bank.{ending}")
    assert f"{folder / 'bank.crt'} is for clinic (alternative names: clinic), not for bank." in refusal(folder)
    with monkeypatch.context() as patch:
        patch.setattr(x509, "DNSName", lambda name, real=x509.DNSName: real("other"))
        make(tmp_path / "odd", ["bank"])
    assert "is for bank (alternative names: other), not for bank. Both must say bank" in refusal(tmp_path / "odd")
    with monkeypatch.context() as patch:
        patch.setattr(
            authority, "_subject", lambda name, real=authority._subject: real("other" if name == "bank" else name)
        )
        make(tmp_path / "odder", ["bank"])
    assert "is for other (alternative names: bank), not for bank." in refusal(tmp_path / "odder")
    with monkeypatch.context() as patch:
        patch.setattr(authority, "_sign", lambda *arguments, real=authority._sign: real(*arguments[:4]))
        make(tmp_path / "oddest", ["bank"])
    assert "is for bank (alternative names: none), not for bank." in refusal(tmp_path / "oddest")


def test_dates(tmp_path: Path) -> None:
    make(tmp_path, ["bank"], days=10, now=datetime(2030, 5, 1, 12, tzinfo=UTC))
    load(tmp_path, "bank", now=datetime(2030, 5, 1, 11, 56, tzinfo=UTC))
    load(tmp_path, "bank", now=datetime(2030, 5, 11, 11, 59, tzinfo=UTC))
    words = refusal(tmp_path, now=datetime(2030, 5, 11, 12, 1, tzinfo=UTC))
    assert "bank.crt expired on 2030-05-11 12:00 UTC and it is 2030-05-11 12:01 UTC. To go on, renew it" in words
    words = refusal(tmp_path, now=datetime(2030, 5, 1, 11, 50, tzinfo=UTC))
    assert "ca.crt is not valid before 2030-05-01 11:55 UTC and it is 2030-05-01 11:50 UTC. Set this mach" in words
    assert "ca.crt expired on 2040-04-28 12:00 UTC" in refusal(tmp_path, now=datetime(2041, 1, 1, tzinfo=UTC))
    make(tmp_path, ["late"], now=datetime(2031, 1, 1, tzinfo=UTC))
    words = refusal(tmp_path, "late", now=datetime(2030, 12, 31, tzinfo=UTC))
    assert "late.crt is not valid before 2030-12-31 23:55 UTC" in words


def test_warning_before_the_end(tmp_path: Path) -> None:
    begin = datetime(2030, 5, 1, 12, tzinfo=UTC)
    make(tmp_path, ["bank"], days=100, now=begin)
    own = load(tmp_path, "bank", now=begin)
    assert days_left(own.certificate, begin) == 100
    assert days_left(own.certificate, begin + 101.5 * DAY) == -1.5
    assert expiry_warning(own, begin + 69 * DAY) == ""
    assert expiry_warning(own, begin + 71 * DAY) == (
        "The certificate of 'bank' expires on 2030-08-09 12:00 UTC. To go on, renew it: `efvfl request` "
        "here, `efvfl sign` at the label holder, `efvfl accept` here."
    )
    assert expiry_warning(own, begin + 71 * DAY, within=28) == ""
    assert "expired on 2030-08-09" in expiry_warning(own, begin + 101 * DAY)
    assert expiry_warning(own, begin + 3640 * DAY) == (
        "The CA of 'bank' expires on 2040-04-28 12:00 UTC. To go on, start with a new authority: `efvfl init` in a "
        "new folder, and new requests of all."
    )


def test_the_clock_is_the_default(ready: Path) -> None:
    own = load(ready, "bank")
    assert 364 < days_left(own.certificate) <= 365
    assert expiry_warning(own) == ""
    assert expiry_warning(own, within=366) != ""
