"""`efvfl request`, `sign`, `accept`, `deny` and `fingerprint`: certificates for keys that never leave their owners."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands, add_command
from efvfl.cli.questions import Questions
from efvfl.errors import ConfigError, nearest, printable

if TYPE_CHECKING:
    from rich.console import Console

    from efvfl.config.own_file import Participant
    from efvfl.network.identity.invitation import Invitation
    from efvfl.network.identity.signing import SigningRequest

LARGEST = 4 << 20  # bytes of a file that is looked at; each kind has a smaller limit of its own
MOST_LINES = 40  # of a comparison of two federation files that are shown


def register(commands: Commands) -> None:
    """Add the commands of this file to the parser."""
    request = add_command(
        commands,
        "request",
        "make your key, if there is none, and a request to be signed",
        "Writes a request beside your own file, to be sent to the label holder. It has your name and the public\n"
        "half of your key; the key itself stays where it is made.",
        "request telco.toml",
    )
    request.add_argument("file", type=Path, help="your own file")
    request.set_defaults(handler=_request)

    sign = add_command(
        commands,
        "sign",
        "the label holder: sign a participant's request, and invite it",
        "Signs the key in a request, and writes an invitation to send back: one file with the certificate, that of\n"
        "the authority and federation.toml. Compare the fingerprint of the key over the phone before.",
        "sign bank.toml telco.request",
        "sign bank.toml shop.request --add",
    )
    sign.add_argument("file", type=Path, help="your own file")
    sign.add_argument("request", type=Path, help="the file that the participant sent")
    sign.add_argument("--fingerprint", help="of its key, as you were told: the first 16 pairs at least")
    sign.add_argument("--add", action="store_true", help="a new party: add it to the federation file")
    sign.add_argument("--replace", action="store_true", help="it has another key than before, or was denied")
    sign.add_argument("--server", action="store_true", help="the request is for the server, not for a party")
    sign.add_argument("--host", nargs="+", default=[], help="with --server: its further names or addresses, for HTTPS")
    sign.add_argument("--days", type=int, default=365, help="until it expires (default: %(default)s)")
    sign.add_argument("--ca", type=Path, metavar="FOLDER", help="where ca.key is kept (default: your certificates)")
    sign.set_defaults(handler=_sign)

    accept = add_command(
        commands,
        "accept",
        "take an invitation: certificate, authority and federation file",
        "Checks an invitation against your key and your own file, and puts what is in it beside them. Compare the\n"
        "fingerprint of the authority over the phone before. Also for a renewed certificate: nothing is started again.",
        "accept telco.toml telco.invitation",
    )
    accept.add_argument("file", type=Path, help="your own file")
    accept.add_argument("invitation", type=Path, help="the file that the label holder sent")
    accept.add_argument("--fingerprint", help="of the authority, as you were told: the first 16 pairs at least")
    accept.add_argument("--replace", action="store_true", help="another authority or federation file than before")
    accept.add_argument("--allow-code", action="store_true", help="the federation file names code to be imported")
    accept.set_defaults(handler=_accept)

    deny = add_command(
        commands,
        "deny",
        "the label holder: refuse a certificate from now on",
        "Puts a certificate on the deny list of the federation file. A server that runs reads it at once: it cuts the\n"
        "connection, and refuses the next one with the reason.",
        "deny bank.toml certs/telco.crt",
    )
    deny.add_argument("file", type=Path, help="your own file")
    deny.add_argument("certificate", help="the certificate, or its fingerprint")
    deny.set_defaults(handler=_deny)

    shown = add_command(
        commands,
        "fingerprint",
        "what to read out over the phone, or to put on the deny list",
        "Prints the fingerprints (SHA-256) of certificates, and of the keys in requests.",
        "fingerprint telco.request",
        "fingerprint bank.toml",
    )
    shown.add_argument("path", type=Path, nargs="+", help="certificate, request, invitation, own file or folder")
    shown.set_defaults(handler=_fingerprint)


def _request(options: argparse.Namespace, console: Console) -> None:
    from efvfl.config import own_file

    write_request(own_file.participant(options.file), console)


def write_request(here: Participant, console: Console) -> None:
    """Write a participant's request beside its own file, and show what to tell the label holder."""
    from efvfl.network.identity import signing
    from efvfl.network.identity.fingerprints import shown
    from efvfl.util.files import write_atomically

    path, data = here.file.with_name(f"{here.certified}.request"), signing.make_request(here.certs, here.certified)
    write_atomically(path, data)
    _say(console, f"wrote {path}: send it to the label holder. The key stays here, in {here.certs}.")
    _say(console, f"key of {here.certified}: {shown(signing.parse_request(data, str(path)).fingerprint)}")


def _sign(options: argparse.Namespace, console: Console) -> None:
    from efvfl.config import own_file
    from efvfl.network.identity import fingerprints, signing
    from efvfl.network.identity.invitation import Invitation
    from efvfl.util.files import write_atomically

    here = own_file.participant(options.file)
    if not here.serves:
        raise ConfigError(f"{here.file} is the own file of {here.name!r}: only the label holder signs requests.")
    request = signing.parse_request(_read(options.request), str(options.request))
    federation = _federation_with(here, request.name, options)
    folder = options.ca or here.certs
    _say(console, f"key of {request.name}: {fingerprints.shown(request.fingerprint)}")
    _confirm(options, console, request)
    if not options.replace:
        _refuse_denied(folder / f"{request.name}.crt", here)
    ca, certificate = signing.sign(folder, request, options.days, options.host, replace=options.replace)
    if federation != here.federation.read_text(encoding="utf-8"):
        write_atomically(here.federation, federation.encode())
        _say(console, f"added {request.name} to {here.federation}: send that file to the other parties.")
    out = here.file.with_name(f"{request.name}.invitation")
    write_atomically(out, Invitation(request.name, ca.decode(), certificate.decode(), federation).to_bytes())
    _say(console, f"certificate of {request.name}: {fingerprints.shown(fingerprints.of_certificate(certificate))}")
    _say(console, f"authority: {fingerprints.shown(fingerprints.of_certificate(ca))}")
    _say(console, f"wrote {out}: send it to {request.name}, and read the line 'authority' out over the phone.")


def _federation_with(here: Participant, name: str, options: argparse.Namespace) -> str:
    """Return the text of the federation file for who asks, which is added if that is wanted; or refuse it."""
    from efvfl.config import new_files, own_file

    names = [party["name"] for party in own_file.read_federation(here.federation).get("party", [])]
    text = here.federation.read_text(encoding="utf-8")
    if (name == own_file.SERVER) != options.server:
        raise ConfigError(
            "a certificate for 'server' is the label holder's own: whoever has it can pretend to be you. Sign it with "
            "--server if you made this request yourself."
            if name == own_file.SERVER
            else f"--server: the request is for {name!r}."
        )
    if name == here.name != own_file.SERVER:
        raise ConfigError(f"{name!r} is the label holder, which runs as 'server': it needs no other certificate.")
    if name in (own_file.SERVER, *names):
        return text
    if not options.add:
        raise ConfigError(
            f"{name!r} is not a party of {here.federation}. {nearest(name, names)} To take it in as a new party, sign "
            "with --add."
        )
    longer = text.rstrip("\n") + "\n" + new_files.added_party(name)
    own_file.parse_federation(longer, here.federation.name)
    return longer


def _confirm(options: argparse.Namespace, console: Console, request: SigningRequest) -> None:
    """Compare the fingerprint that was told, or ask somebody at a terminal to do so."""
    from efvfl.network.identity import fingerprints

    asking = Questions(console)
    if options.fingerprint:
        fingerprints.check(request.fingerprint, options.fingerprint, f"the key of {request.name}")
    elif asking.possible and not asking.yes(f"Has {request.name} read out the same to you?"):
        raise ConfigError("nothing was signed: compare the fingerprints over the phone first.")


def _refuse_denied(path: Path, here: Participant) -> None:
    """Refuse to renew a certificate that is denied."""
    from efvfl.network.identity.deny_list import DenyList
    from efvfl.network.identity.signing import fingerprint_of

    if path.exists() and DenyList(here.federation).has(fingerprint_of(path)):
        raise ConfigError(f"{path} is on the deny list: sign with --replace if its owner may take part again.")


def _accept(options: argparse.Namespace, console: Console) -> None:
    from efvfl.config import own_file
    from efvfl.network.identity import fingerprints
    from efvfl.network.identity.certificates import Credentials, valid_until
    from efvfl.network.identity.invitation import Invitation
    from efvfl.util.files import write_atomically

    here = own_file.participant(options.file)
    invitation = Invitation.from_bytes(_read(options.invitation), str(options.invitation))
    if invitation.name != here.certified:
        raise ConfigError(f"{options.invitation} is for {invitation.name!r}, and {here.file} is {here.certified!r}'s.")
    invitation.check(here.certs / f"{here.certified}.key")
    address = _checked_federation(here, invitation, options, console)
    ca, certificate = invitation.ca.encode(), invitation.certificate.encode()
    _say(console, f"authority: {fingerprints.shown(fingerprints.of_certificate(ca))}")
    _trust(here, ca, options, console)
    write_atomically(here.certs / "ca.crt", ca)
    write_atomically(here.certs / f"{here.certified}.crt", certificate)
    write_atomically(here.federation, invitation.federation.encode())
    until = valid_until(Credentials(here.certified, ca, certificate, b""))
    _say(console, f"certificate of {here.certified}: {fingerprints.shown(fingerprints.of_certificate(certificate))}")
    _say(console, f"It is {until}. What all agree on is in {here.federation}; the server is at {address}.")


def _checked_federation(
    here: Participant, invitation: Invitation, options: argparse.Namespace, console: Console
) -> str:
    """Refuse a federation file that does not load with the own one, or that is not what was agreed before."""
    from efvfl.config import own_file
    from efvfl.config.parsing import parse
    from efvfl.config.run_file import RunConfig, read

    table = own_file.parse_federation(invitation.federation, "the federation file in it")
    own = parse(here.file.read_text(encoding="utf-8"), here.file.name)
    config = read(RunConfig, own_file.merge(own, table, here.file.name), here.file.name)
    if (code := own_file.named_code(table)) and not options.allow_code:
        raise ConfigError(
            f"the federation file names code that would be imported here: {printable(', '.join(code))[:300]}. If you "
            "have read and trust it, accept with --allow-code."
        )
    before = here.federation.read_text(encoding="utf-8") if here.federation.exists() else invitation.federation
    if before != invitation.federation and not options.replace:
        lines = difflib.unified_diff(before.splitlines(), invitation.federation.splitlines(), "yours", "theirs", n=0)
        for line in list(lines)[:MOST_LINES]:
            _say(console, printable(line)[:200])
        raise ConfigError(f"{here.federation} says something else: accept with --replace if you agree to the changes.")
    return printable(config.network.address)


def _trust(here: Participant, ca: bytes, options: argparse.Namespace, console: Console) -> None:
    """Refuse another authority than before, or than was told; ask somebody at a terminal about the first one."""
    from efvfl.network.identity import fingerprints

    path, asking = here.certs / "ca.crt", Questions(console)
    known = path.exists() and fingerprints.of_certificate(path.read_bytes()) == fingerprints.of_certificate(ca)
    if options.fingerprint:
        fingerprints.check(fingerprints.of_certificate(ca), options.fingerprint, "the authority")
    if path.exists() and not known and not options.replace:
        raise ConfigError(
            f"the invitation has another authority than {path}. If the label holder told you so by a way you trust, "
            "accept with --replace."
        )
    if known or options.fingerprint or not asking.possible:
        return
    if not asking.yes("Has the label holder read out the same to you?"):
        raise ConfigError("nothing was written: compare the fingerprints over the phone first.")


def _deny(options: argparse.Namespace, console: Console) -> None:
    from efvfl.config import new_files, own_file
    from efvfl.config.network import check_fingerprint
    from efvfl.network.identity import fingerprints
    from efvfl.util.files import write_atomically

    here = own_file.participant(options.file)
    if not here.serves:
        raise ConfigError(f"{here.file} is the own file of {here.name!r}: only the label holder's server denies.")
    path = Path(options.certificate)
    found = fingerprints.of_certificate(_read(path)) if path.exists() else check_fingerprint(options.certificate)
    own_file.read_federation(here.federation)
    text = new_files.with_denied(here.federation.read_text(encoding="utf-8"), fingerprints.shown(found))
    write_atomically(here.federation, text.encode())
    _say(console, f"denied {fingerprints.shown(found)} in {here.federation}. A server that runs has noticed.")


def _fingerprint(options: argparse.Namespace, console: Console) -> None:
    for place in options.path:
        for path in _files(place):
            for what, text in _shown(path):
                _say(console, f"{what}: {text}")


def _files(place: Path) -> list[Path]:
    """Return the certificates, requests and invitations at a place."""
    if place.suffix == ".toml":
        from efvfl.config import own_file

        place = own_file.participant(place).certs
    if not place.is_dir():
        return [place]
    found = sorted(path for path in place.iterdir() if path.suffix in (".crt", ".request", ".invitation"))
    if not found:
        raise ConfigError(f"there is no certificate, request or invitation in {place}.")
    return found


def _shown(path: Path) -> list[tuple[str, str]]:
    """Return what is in a file, and its fingerprints."""
    from efvfl.network.identity import fingerprints, signing
    from efvfl.network.identity.invitation import Invitation

    data = _read(path)
    if path.suffix == ".request":
        return [(f"{path}, key", fingerprints.shown(signing.parse_request(data, str(path)).fingerprint))]
    if path.suffix != ".invitation":
        return [(str(path), fingerprints.shown(fingerprints.of_certificate(data)))]
    found = Invitation.from_bytes(data, str(path))
    parts = {"authority": found.ca, f"certificate of {found.name}": found.certificate}
    return [(f"{path}, {n}", fingerprints.shown(fingerprints.of_certificate(t.encode()))) for n, t in parts.items()]


def _read(path: Path) -> bytes:
    """Return a file from others, as far as any limit reaches."""
    try:
        with open(path, "rb") as file:
            return file.read(LARGEST)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}.") from error


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)
