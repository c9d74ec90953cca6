"""All that `efvfl doctor` looks at, one after the other: later things only where earlier ones allow it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from efvfl.config import own_file, user_code
from efvfl.config.run_file import RunConfig
from efvfl.errors import ConfigError, EfvflError, nearest
from efvfl.network import handshake
from efvfl.network.doctor import machine as machines
from efvfl.network.doctor import tables
from efvfl.network.doctor.diagnosis import Diagnosis, Grade, problem_of
from efvfl.network.doctor.estimate import RunCost, estimate
from efvfl.network.doctor.line_probe import LineReport, Measured, visit
from efvfl.network.doctor.listening import Waiting
from efvfl.network.doctor.machine import Machine
from efvfl.network.identity import certificates
from efvfl.network.identity.certificates import SERVER, Credentials
from efvfl.network.links.line_errors import LineError
from efvfl.network.links.listening import open_listener
from efvfl.network.ops.session import SessionOptions
from efvfl.runs.line import Line
from efvfl.runs.terminal import size

SLOW_TRIP = 0.25  # seconds: every step waits for one
TIGHT = 0.5  # of the limit of a party's own file, from which on it is worth a warning


@dataclass
class Checkup:
    """Looks at everything that a participant needs."""

    options: SessionOptions
    party: str  # '': the label holder
    machine: Machine = field(default_factory=Machine)
    tell: Callable[[str], None] = lambda text: None  # hears of progress
    findings: list[Diagnosis] = field(default_factory=list)
    lines: dict[str, Measured] = field(default_factory=dict)  # by party
    estimate: RunCost | None = None

    @property
    def problems(self) -> list[Diagnosis]:
        """What would stop this participant."""
        return [found for found in self.findings if found.grade == "problem"]

    def run(self, listen: float = 0.0) -> None:
        """Look at everything; as the label holder, listen for the doctors of parties for so many seconds."""
        config = self._file()
        if config is None:
            return
        name, home = self.party, self.options.folder_of(self.party or SERVER)
        own = tables.look(config, self.options.file.parent, name, home)
        if own.names and name and (unfit := _unfit(name, own.names, config)):
            self.findings.append(unfit)
            return
        self.findings += own.findings
        if self.options.participant is None and (config.of(name) if name else config).private_seed is None:
            text = "no private_seed is set: initial parameters and noise follow from the seed that all know"
            self.findings.append(Diagnosis("seed", "warning", text, "set one in your own copy, before the run begins."))
        credentials = self._keys(name or SERVER)
        if own.rows:
            try:
                self.estimate = estimate(config, own.names, own.rows, name)
            except EfvflError as error:
                self.findings.append(problem_of("settings", error))
        self.findings += machines.disk(home, self.estimate.disk if self.estimate else 0.0, self.machine)
        self._line(config, own.names, credentials, listen)
        self._cost(config)

    def _file(self) -> RunConfig | None:
        try:
            config, _ = own_file.open_run(self.options.file)
            self.options.address_of(config)
            user_code.look_in(self.options.file.parent)
        except EfvflError as error:
            self.findings.append(problem_of("file", error))
            return None
        self.findings.append(Diagnosis("file", "ok", f"{self.options.file} can be read"))
        return config

    def _keys(self, name: str) -> Credentials | None:
        now = self.machine.now()
        try:
            credentials = certificates.load(self.options.certs, name, now=now)
        except EfvflError as error:
            self.findings.append(problem_of("keys", error))
            return None
        if warning := certificates.expiry_warning(credentials, now):
            self.findings.append(Diagnosis("keys", "warning", warning))
        else:
            left = certificates.days_left(credentials.certificate, now)
            self.findings.append(Diagnosis("keys", "ok", f"the certificate of {name!r} is valid for {left:,.0f} days"))
        return credentials

    def _line(self, config: RunConfig, names: list[str], credentials: Credentials | None, listen: float) -> None:
        address = self.options.address_of(config)
        self.findings += filter(None, [machines.name(address)])
        if not self.party:
            if listen and credentials:
                self._wait(config, names, credentials, listen)
            else:
                self.findings.append(machines.port(address, self.options.folder_of(SERVER)))
            return
        self.findings += filter(None, [machines.proxy(address, self.machine)])
        if credentials is None:
            text = "not looked at: a certificate that is accepted is needed for it"
            self.findings.append(Diagnosis("line", "warning", text, "mend the keys first."))
            return
        about = {"shared": handshake.shared_part(config, names)} if names else {}
        try:
            report = visit(address, credentials, about, environ=self.machine.environ)
        except LineError as error:
            more = " `efvfl doctor --listen` there answers, too." if error.fault == "unreachable" else ""
            self.findings.append(Diagnosis("line", "problem", error.text, error.advice + more))
        except (OSError, EfvflError) as error:
            self.findings.append(Diagnosis("line", "problem", f"the line to {address} broke: {error}", "try again."))
        else:
            self._describe(address, report)

    def _describe(self, address: str, report: LineReport) -> None:
        who = f"{address} is the server of this federation (certificate {report.certificate} ...)"
        if report.measured is None:
            text = f"{who}; connecting takes {1e3 * report.connecting:.1f} ms. It runs, so nothing more is measured"
            self.findings.append(
                Diagnosis("line", "ok", text, "`efvfl doctor --listen` there measures it, before it runs.")
            )
            return
        self.lines[self.party] = report.measured
        self.findings += [Diagnosis("line", "ok", who), _speed(report.measured, self.party)]
        self.findings.append(machines.clocks(report.measured.skew, "the label holder"))
        if report.differences:
            text = f"the shared part of the files differs: {'; '.join(report.differences)}"
            self.findings.append(Diagnosis("settings", "problem", text, "agree on one."))

    def _wait(self, config: RunConfig, names: list[str], credentials: Credentials, seconds: float) -> None:
        address = self.options.address_of(config)
        try:
            listener = open_listener(address)
        except ConfigError:
            self.findings.append(machines.port(address, self.options.folder_of(SERVER)))
            return
        expected = [name for name in names if name != config.label_holder]
        waiting = Waiting(credentials, expected, handshake.shared_part(config, names), self.tell)
        with listener:
            port = listener.getsockname()[1]
            self.tell(f"Listening on port {port} for the doctors of {', '.join(expected)}, {seconds:,.0f} s at most.")
            waiting.run(listener, seconds)
        for name in expected:
            if (been := waiting.visits.get(name)) is None:
                text = f"{name} was not here" + (f"; {waiting.refused:,} were refused" if waiting.refused else "")
                advice = "have it run `efvfl doctor` with its own file while this listens."
                self.findings.append(Diagnosis("line", "warning", text, advice))
                continue
            self.lines[name] = been.measured
            self.findings += [_speed(been.measured, name), machines.clocks(-been.measured.skew, name)]
            if been.differences:
                text = f"the shared part of the files differs: {'; '.join(been.differences)}"
                self.findings.append(Diagnosis("settings", "problem", text, "agree on one."))

    def _cost(self, config: RunConfig) -> None:
        found = self.estimate
        if found is None:
            return
        up, down = (
            sum(part.values()) if not self.party else part.get(self.party, 0.0)
            for part in (found.bytes_up, found.bytes_down)
        )
        line = self.slowest
        shown = f"a round trip of {1e3 * line.round_trip:.1f} ms, {_rate(line.up)} up and {_rate(line.down)} down"
        how = "as measured" if self.lines else "assumed"
        text = f"at most {found.rounds:,} rounds: about {size(up)} up and {size(down)} down; "
        text += f"{duration(found.seconds(line))} on a line with {shown} ({how}), computing aside"
        self.findings.append(Diagnosis("run", "ok", text))
        limit = config.of(self.party).limits.bytes if self.party else 0
        if limit and up > TIGHT * limit:
            grade: Grade = "problem" if up > limit else "warning"
            text = f"limits.bytes is {limit:,}, and about {up:,.0f} bytes will be sent"
            self.findings.append(Diagnosis("limits", grade, text, "raise it, or expect this party to end the run."))

    @property
    def slowest(self) -> Line:
        """The worst of all measured lines; without any, the one that `efvfl plan` assumes."""
        if not self.lines:
            return Line()
        all_lines = self.lines.values()
        return Line(
            max(line.round_trip for line in all_lines),
            min(line.up for line in all_lines),
            min(line.down for line in all_lines),
        )

    def to_table(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        found = self.estimate
        return {
            "participant": self.party or SERVER,
            "problems": len(self.problems),
            "findings": [asdict(each) for each in self.findings],
            "lines": {name: asdict(line) for name, line in self.lines.items()},
            "estimate": found
            and {
                "rounds": found.rounds,
                "bytes_up": dict(found.bytes_up),
                "bytes_down": dict(found.bytes_down),
                "disk": found.disk,
                "seconds": found.seconds(self.slowest),
            },
        }


def _unfit(name: str, names: list[str], config: RunConfig) -> Diagnosis | None:
    if name not in names:
        return Diagnosis("party", "problem", f"{name!r} is not a party of this federation", nearest(name, names))
    if name == config.label_holder:
        return Diagnosis("party", "problem", f"{name!r} sits next to the server", "leave --party out.")
    return None


def _speed(line: Measured, name: str) -> Diagnosis:
    text = f"{name}: round trip {1e3 * line.round_trip:.1f} ms, {_rate(line.up)} up, {_rate(line.down)} down"
    if line.round_trip > SLOW_TRIP:
        return Diagnosis("speed", "warning", text, "every step waits for it: `efvfl plan` finds a setting with fewer.")
    return Diagnosis("speed", "ok", text)


def _rate(bits: float) -> str:
    return f"{bits / 1e6:,.1f} Mbit/s" if bits < 1e9 else f"{bits / 1e9:,.1f} Gbit/s"


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(0.2), duration(45), duration(600), duration(90_000)
    ('less than a second', '45 s', '10 min', '25.0 h')
    """
    if seconds < 1:
        return "less than a second"
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
