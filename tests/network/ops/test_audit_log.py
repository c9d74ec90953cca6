"""What the audit log calls the frames that it writes down."""

from pathlib import Path

import pytest

from efvfl.network.align.messages import AlignmentKind, write
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.ops import audit_log
from efvfl.network.ops.audit_log import CONTENTS, AuditLog


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
