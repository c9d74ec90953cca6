"""Keys that stay at home: `efvfl init`, `request`, `sign`, `accept`, `deny` and `fingerprint`, and what they refuse."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from efvfl.cli.main import main
from efvfl.config import own_file
from efvfl.config.new_files import FederationAnswers, OwnAnswers, federation_text, own_text
from efvfl.config.parsing import parse
from efvfl.config.run_file import OwnData
from efvfl.data.tables.roles import guess_roles, loss_for
from efvfl.errors import ConfigError
from efvfl.network.identity import authority, certificates, fingerprints, signing
from efvfl.network.identity.invitation import LARGEST, Invitation

BANK = "customer,age,default\n" + "".join(f"c{i},{20 + i % 7},{i % 2}\n" for i in range(30))
TELCO = "calls,client\n" + "".join(f"{i % 5},c{i}\n" for i in range(30))
ADDRESS = "vfl.example.org:7143"


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank and a telephone company after the bank has signed."""
    folder = tmp_path_factory.mktemp("met")
    for name, table, text in (("bank", "customers.csv", BANK), ("telco", "clients.csv", TELCO)):
        (folder / name).mkdir()
        (folder / name / table).write_text(text)
    bank, telco = folder / "bank", folder / "telco"
    words = ["--label", "default", "--invite", "telco", "--address", ADDRESS]
    assert main(["init", str(bank / "customers.csv"), "--party", "bank", *words, "--out", str(bank)]) == 0
    assert main(["init", str(telco / "clients.csv"), "--party", "telco", "--out", str(telco)]) == 0
    assert main(["sign", str(bank / "bank.toml"), str(telco / "telco.request")]) == 0
    return folder


@pytest.fixture
def town(met: Path, tmp_path: Path) -> Path:
    """A copy of it, to change."""
    return Path(shutil.copytree(met, tmp_path / "town"))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must end with exit code 2, and return what it says."""

    def run(*words: object) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 2
        return capsys.readouterr().err

    return run


def accept(town: Path, *words: str) -> int:
    telco = town / "telco"
    return main(["accept", str(telco / "telco.toml"), str(town / "bank" / "telco.invitation"), *words])


def test_init_recognises_the_table_and_writes_what_loads(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, here = own_file.open_run(town / "bank" / "bank.toml")
    assert config.loss == "binary_cross_entropy"
    data = config.of("bank").data
    assert data is not None
    assert (data.path, data.id, data.label) == ("customers.csv", "customer", "default")
    assert config.network.address == "0.0.0.0:7143"  # where it listens; parties dial the other
    assert here is not None
    assert here.serves
    assert accept(town) == 0
    config, here = own_file.open_run(town / "telco" / "telco.toml")
    assert config.network.address == ADDRESS
    assert config.of("telco").data == OwnData("clients.csv", id="client")
    assert certificates.load(town / "telco" / "certs", "telco").name == "telco"
    assert (town / "telco" / "certs" / "telco.key").stat().st_mode & 0o777 == 0o600
    assert main(["inspect", str(town / "telco" / "telco.toml")]) == 0
    assert "30 of 30 rows have a unique id" in capsys.readouterr().out


def test_init_never_replaces_anything(town: Path, refused: Callable[..., str]) -> None:
    before = {path: path.read_bytes() for path in town.rglob("*") if path.is_file()}
    assert "is there already" in refused(
        "init", town / "telco" / "clients.csv", "--party", "telco", "--out", town / "telco"
    )
    words = ["--party", "other", "--label", "default", "--invite", "telco", "--address", ADDRESS]
    assert "federation.toml is there" in refused(
        "init", town / "bank" / "customers.csv", *words, "--out", town / "bank"
    )
    assert {path: path.read_bytes() for path in town.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "? Give --party"),
        (["--party", "bank", "--label", "default"], "? Give --invite"),
        (["--party", "bank", "--label", "default", "--invite", "telco"], "? Give --address"),
        (["--party", "bank", "--label", "defult", "--invite", "telco"], "Did you mean 'default'?"),
        (["--party", "b/nk"], "cannot be the name"),
        (["--party", "federation"], "cannot be a name"),
        (["--party", "bank", "--id", "customr"], "Did you mean 'customer'?"),
        (["--party", "bank", "--label", "default", "--invite", "server", "--address", ADDRESS], "rename it"),
        (["--party", "bank", "--label", "default", "--invite", "telco", "--address", "here"], "expected host:port"),
    ],
)
def test_init_without_a_terminal_names_the_flag(
    tmp_path: Path, refused: Callable[..., str], words: list[str], told: str
) -> None:
    (tmp_path / "customers.csv").write_text(BANK)
    assert told in refused("init", tmp_path / "customers.csv", *words, "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_init_lists_the_columns_where_none_is_recognised(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "clients.csv").write_text("client,calls\na,1\na,1\n")
    told = refused("init", tmp_path / "clients.csv", "--party", "telco", "--out", tmp_path / "new")
    assert "Give --id: no column has another value in every row; the columns are client, calls." in told


def test_init_asks_at_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    (tmp_path / "customers.csv").write_text(BANK)
    monkeypatch.setattr("sys.stdin", Terminal(f"bank\ny\n\n\ntelco shop\n{ADDRESS}\n"))
    assert main(["init", str(tmp_path / "customers.csv"), "--out", str(tmp_path)]) == 0
    config, _ = own_file.open_run(tmp_path / "bank.toml")
    assert [party.name for party in config.party] == ["bank", "telco", "shop"]


def test_a_label_holder_with_labels_alone(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(BANK)
    words = ["--party", "server", "--label", "default", "--invite", "bank", "telco", "--address", "127.0.0.1:7143"]
    assert main(["init", str(tmp_path / "labels.csv"), *words, "--out", str(tmp_path)]) == 0
    config, _ = own_file.open_run(tmp_path / "server.toml")
    assert (config.label_holder, config.data.label, config.data.path) == ("", "default", "labels.csv")


def test_names_of_columns_that_toml_must_quote() -> None:
    own = OwnAnswers("bank", 'a "b"\\c.csv', "id\tü", "la\x7fbel")
    agreed = FederationAnswers("bank", ["telco"], ADDRESS, "mse", 1)
    table = own_file.merge(
        parse(own_text(own), "own"), own_file.parse_federation(federation_text(agreed), "federation"), "own"
    )
    assert table["party"][0]["data"] == {"path": 'a "b"\\c.csv', "id": "id\tü", "label": "la\x7fbel"}


def test_columns_are_guessed_and_a_loss_that_suits(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("town,clientId,price,Target\n" + "".join(f"t{i % 3},{i},{i / 7},{i % 3}\n" for i in range(40)))
    roles = guess_roles(path)
    assert (roles.id, roles.label) == ("clientId", "Target")
    assert [loss_for(path, name) for name in ("Target", "price", "town")] == ["cross_entropy", "mse", "cross_entropy"]
    path.write_text("a,b\n1.5,1\n2.5,1\n")
    assert guess_roles(path) == type(roles)(("a", "b"), "", "")


# The label holder's side.


def test_names_that_are_not_expected_need_a_flag(town: Path, refused: Callable[..., str]) -> None:
    bank, other = town / "bank", town / "other"
    (town / "telco" / "shop.toml").write_text('party = "shop"\n')
    assert main(["request", str(town / "telco" / "shop.toml")]) == 0
    told = refused("sign", bank / "bank.toml", town / "telco" / "shop.request")
    assert "'shop' is not a party" in told
    assert "--add" in told
    before = (bank / "federation.toml").read_text()
    assert main(["sign", str(bank / "bank.toml"), str(town / "telco" / "shop.request"), "--add"]) == 0
    assert (bank / "federation.toml").read_text().startswith(before.rstrip())
    assert [p.name for p in own_file.open_run(bank / "bank.toml")[0].party] == ["bank", "telco", "shop"]

    other.write_bytes(signing.make_request(town / "elsewhere", "server"))
    assert "--server if you made this request" in refused("sign", bank / "bank.toml", other)
    assert "another key" in refused("sign", bank / "bank.toml", other, "--server")
    assert "the request is for 'telco'" in refused(
        "sign", bank / "bank.toml", town / "telco" / "telco.request", "--server"
    )
    other.write_bytes(signing.make_request(town / "elsewhere", "bank"))
    assert "runs as 'server'" in refused("sign", bank / "bank.toml", other)
    assert "only the label holder" in refused("sign", town / "telco" / "telco.toml", other)


def test_another_key_needs_a_flag(town: Path, refused: Callable[..., str]) -> None:
    bank, telco = town / "bank", town / "telco"
    (telco / "certs" / "telco.key").unlink()
    assert main(["request", str(telco / "telco.toml")]) == 0
    before = (bank / "certs" / "telco.crt").read_bytes()
    assert "--replace" in refused("sign", bank / "bank.toml", telco / "telco.request")
    assert (bank / "certs" / "telco.crt").read_bytes() == before
    assert "answers another request" in refused("accept", telco / "telco.toml", bank / "telco.invitation")
    assert main(["sign", str(bank / "bank.toml"), str(telco / "telco.request"), "--replace"]) == 0
    assert accept(town) == 0


def test_a_denied_certificate_is_not_renewed_by_accident(town: Path, refused: Callable[..., str]) -> None:
    bank, telco = town / "bank", town / "telco"
    assert main(["deny", str(bank / "bank.toml"), str(bank / "certs" / "telco.crt")]) == 0
    denied = own_file.open_run(bank / "bank.toml")[0].network.denied
    assert denied == (fingerprints.shown(signing.fingerprint_of(bank / "certs" / "telco.crt")),)
    assert "deny list" in refused("sign", bank / "bank.toml", telco / "telco.request")
    assert main(["sign", str(bank / "bank.toml"), str(telco / "telco.request"), "--replace"]) == 0
    assert "expected a fingerprint" in refused("deny", bank / "bank.toml", "AB:CD")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: b"", "is not a request"),
        (lambda data: data.replace(b"REQUEST", b"THING"), "is not a request"),
        (lambda data: data + b"x" * signing.LARGEST, "at most"),
        (lambda data: b"\x00" * 100, "is not a request"),
    ],
)
def test_requests_are_data(
    town: Path, refused: Callable[..., str], change: Callable[[bytes], bytes], told: str
) -> None:
    path = town / "telco" / "telco.request"
    path.write_bytes(change(path.read_bytes()))
    assert told in refused("sign", town / "bank" / "bank.toml", path)


def test_a_request_that_was_changed_on_its_way(town: Path) -> None:
    data = x509.load_pem_x509_csr((town / "telco" / "telco.request").read_bytes()).public_bytes(Encoding.DER)
    other = x509.load_der_x509_csr(data.replace(b"telco", b"telcx")).public_bytes(Encoding.PEM)
    with pytest.raises(ConfigError, match="not signed by its own key"):
        signing.parse_request(other, "it")


# The party's side.


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "bank"}, "is for 'bank'"),
        ({"name": "../x"}, "cannot be the name"),
        ({"kind": "efvfl invitation 9"}, "expected 'efvfl invitation 1'"),
        ({"more": "x"}, "expected the texts"),
        ({"ca": 3}, "expected the texts"),
        ({"ca": "x"}, "not a certificate"),
        ({"certificate": "x"}, "not a certificate"),
        ({"federation": "x"}, "is not TOML"),
        ({"federation": "seed = 'x'"}, "seed: expected a whole number"),
        ({"federation": "private_seed = 3"}, "not for all to know"),
        ({"federation": "party = 'telco'"}, "a participant's own file"),
        ({"federation": "data = { name = 'table' }\n[[party]]\nname = 'shop'"}, "'telco' is not a party"),
        ({"federation": "seed = 1\n" + "#" * (1 << 20)}, "at most"),
    ],
)
def test_invitations_are_data(town: Path, refused: Callable[..., str], change: dict[str, object], told: str) -> None:
    path, telco = town / "bank" / "telco.invitation", town / "telco"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert told in refused("accept", telco / "telco.toml", path)
    assert not (telco / "federation.toml").exists()
    assert not (telco / "certs" / "ca.crt").exists()


@pytest.mark.parametrize("data", [b"", b"[" * 5000, b"\xff", b"3", b"{}", b" " * (LARGEST + 1)])
def test_bytes_that_are_no_invitation(data: bytes) -> None:
    with pytest.raises(ConfigError, match="invitation"):
        Invitation.from_bytes(data, "it")


def test_code_in_an_invitation_needs_a_flag(town: Path, refused: Callable[..., str]) -> None:
    path, telco = town / "bank" / "telco.invitation", town / "telco"
    table = json.loads(path.read_text())
    table["federation"] += "\n[fusion]\nname = 'subprocess:call'\n"
    path.write_text(json.dumps(table))
    assert "subprocess:call" in refused("accept", telco / "telco.toml", path)
    assert accept(town, "--allow-code") == 0


def test_fingerprints_are_compared(town: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    bank, telco = town / "bank", town / "telco"
    right = fingerprints.shown(signing.fingerprint_of(bank / "certs" / "ca.crt"))
    wrong = right[:-1] + ("0" if right[-1] != "0" else "1")
    invitation = bank / "telco.invitation"
    assert "Nothing was written" in refused("accept", telco / "telco.toml", invitation, "--fingerprint", wrong)
    assert "first 16 pairs" in refused("accept", telco / "telco.toml", invitation, "--fingerprint", right[:20])
    assert accept(town, "--fingerprint", right[: 3 * 16 - 1]) == 0
    assert right in capsys.readouterr().out
    assert main(["fingerprint", str(telco / "telco.toml"), str(telco / "telco.request"), str(invitation)]) == 0
    shown = capsys.readouterr().out
    assert shown.count(right) == 2  # of ca.crt and in the invitation
    assert "no certificate" in refused("fingerprint", telco.parent)


def test_a_fingerprint_is_not_taken_for_an_emoji(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = ":".join(["CD"] * 32)  # where rich looks for emoji, it writes a disc
    assert main(["deny", str(town / "bank" / "bank.toml"), pairs]) == 0
    assert pairs in capsys.readouterr().out


def test_another_authority_or_federation_needs_a_flag(
    town: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    bank, telco = town / "bank", town / "telco"
    assert accept(town) == 0
    assert accept(town) == 0  # the same again is no harm
    agreed = bank / "federation.toml"
    agreed.write_text("epochs = 9\n" + agreed.read_text())
    assert main(["sign", str(bank / "bank.toml"), str(telco / "telco.request")]) == 0
    capsys.readouterr()
    assert main(["accept", str(telco / "telco.toml"), str(bank / "telco.invitation")]) == 2
    said = capsys.readouterr()
    assert "+epochs = 9" in said.out
    assert "--replace" in said.err
    assert accept(town, "--replace") == 0
    for name in ("ca.key", "ca.crt", "telco.crt"):
        (bank / "certs" / name).unlink()
    authority.make(bank / "certs", ["new"])
    assert main(["sign", str(bank / "bank.toml"), str(telco / "telco.request")]) == 0
    assert "another authority" in refused("accept", telco / "telco.toml", bank / "telco.invitation")
    assert accept(town, "--replace") == 0


def test_the_servers_certificate_is_renewed_with_its_names(town: Path) -> None:
    bank = town / "bank"
    before = certificates.parse("it", (bank / "certs" / "server.crt").read_bytes())
    assert main(["request", str(bank / "bank.toml")]) == 0
    words = ["--server", "--host", "predictions.example.org"]
    assert main(["sign", str(bank / "bank.toml"), str(bank / "server.request"), *words]) == 0
    after = certificates.parse("it", (bank / "certs" / "server.crt").read_bytes())
    names = [[str(name.value) for name in certificates.other_names(each)] for each in (before, after)]
    assert names == [["server", "vfl.example.org"], ["server", "vfl.example.org", "predictions.example.org"]]
    assert certificates.load(bank / "certs", "server").name == "server"


def test_signing_where_the_authority_is_kept(town: Path, refused: Callable[..., str]) -> None:
    bank, vault = town / "bank", town / "vault"
    vault.mkdir(mode=0o700)
    for name in ("ca.key", "ca.crt"):
        (bank / "certs" / name).rename(vault / name)
    request = town / "telco" / "telco.request"
    assert "--ca FOLDER" in refused("sign", bank / "bank.toml", request)
    assert main(["sign", str(bank / "bank.toml"), str(request), "--ca", str(vault)]) == 0
    assert accept(town) == 0


def test_certs_are_for_the_parties_of_a_federation_file_without_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the data are arrays, nothing in the file names them; the parties of built-in data were taken instead."""
    monkeypatch.chdir(tmp_path)
    Path("federation.toml").write_text('[[party]]\nname = "north"\n[[party]]\nname = "south"\n')
    assert main(["certs", "federation.toml"]) == 0
    assert {path.stem for path in Path("certs").glob("*.crt")} == {"ca", "server", "north", "south"}


@pytest.mark.parametrize("command", ["serve", "predict", "serve-predictions"])
def test_what_only_the_label_holder_runs(town: Path, refused: Callable[..., str], command: str) -> None:
    told = refused(command, town / "telco" / "telco.toml")
    assert f"is the own file of 'telco', and only the label holder runs `efvfl {command}`. Take part with" in told
