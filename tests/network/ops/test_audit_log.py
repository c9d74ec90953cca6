"""What the audit log calls the frames that it writes down."""

import json
from pathlib import Path

import pytest

from efvfl.network.align.messages import AlignmentKind, write
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.links.framing import framed
from efvfl.network.ops import audit_log
from efvfl.network.ops.audit_log import CONTENTS, FILE, AuditLog
from efvfl.wire.message import Kind, Message


def test_every_question_of_an_alignment_is_explained() -> None:
    for kind in AlignmentKind:
        assert {f"ask-{kind.name.lower()}", f"answer-{kind.name.lower()}"} <= set(CONTENTS)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\x00packet", "answer"),
        (b"\x01refused", "answer"),
        (b"\x02[0,3]\x00packet", "answer"),  # ids that a party lacks
        (b"\x02[0]\x00", "answer"),
        (write(AlignmentKind.SIZE, ord("[")), "answer-size"),  # 91 ids
        (write(AlignmentKind.SIZE, 1 << 40), "answer-size"),
        (write(AlignmentKind.NUMBERS, 7), "answer-numbers"),
    ],
)
def test_answers_about_rows_are_told_from_those_of_an_alignment(tmp_path: Path, body: bytes, kind: str) -> None:
    log = AuditLog(tmp_path)
    log.record("bank", "in", Frame(FrameKind.ANSWER, 1, 0, body))
    log.close()
    assert [line.kind for line in audit_log.read(tmp_path)] == [kind]


@pytest.mark.parametrize("peer", ["bank", 'a "bank"', "\u00e9\n"])
@pytest.mark.parametrize(
    ("body", "kind", "step"),
    [
        *((Message(kind, 300).to_bytes(), kind.name.lower(), 300) for kind in Kind),
        (b"", "unreadable", None),
        (b"EF\x01\xff\x00", "unreadable", None),
    ],
)
def test_a_line_is_json_as_anybody_writes_it(
    tmp_path: Path, peer: str, body: bytes, kind: str, step: int | None
) -> None:
    log, frame = AuditLog(tmp_path), Frame(FrameKind.REQUEST, 70_000, 200, body)
    log.record(peer, "out", frame)
    log.close()
    (text,) = (tmp_path / FILE).read_text(encoding="utf-8").splitlines()
    line = json.loads(text)
    assert json.dumps(line) == text
    assert (line["peer"], line["kind"], line["step"], line["payload"]) == (peer, kind, step, len(body))
    assert line["frame"] == log.totals["out"] == len(framed(frame.to_bytes()))
