"""A party's side of a connection: what leaves is what is counted, and what a server says is only a text."""

import socket
import struct
import threading
from dataclasses import replace
from functools import partial

import pytest
from warm_processes import PATIENT

from efvfl.errors import AbsentError, LinkError
from efvfl.network.links.connecting import dial
from efvfl.network.links.dialling import Dialler, PartyTimeouts
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.network.links.framing import PREFACE, SIGN_OF_LIFE
from efvfl.network.links.listening import listen
from efvfl.network.links.wire import Wire

HASTY = PartyTimeouts(welcome=0.5, tick=0.01, first=0.01, longest=0.05)


class Handler:
    """A party that has nothing but a name."""

    name = "north"

    def hello(self) -> Frame:
        return json_frame(FrameKind.HELLO, {"name": self.name})

    def respond(self, frame: Frame) -> Frame | None:
        return Frame(FrameKind.BYE)

    def save(self) -> None: ...

    def save_if_due(self) -> None: ...


def counted(address: str, patience: float) -> list[tuple[str, str]]:
    """Dial an address until it is given up or the server ends it; return the frames that were counted."""
    frames: list[tuple[str, str]] = []
    joining = Dialler(
        Handler(),
        partial(dial, address, None, 1 << 20),
        replace(HASTY, server=patience),
        on_frame=lambda peer, direction, frame: frames.append((direction, frame.kind.name)),
    )
    try:
        joining.run()
    except AbsentError:
        frames.append(("", "given up"))
    return frames


def test_a_hello_that_did_not_leave_is_not_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert counted(f"127.0.0.1:{port}", 0.3) == [("", "given up")]  # nobody listens there any more


def test_a_hello_that_left_is_counted_whether_it_is_answered_or_not() -> None:
    answers: list[list[Frame]] = [[], [json_frame(FrameKind.WELCOME, {}), Frame(FrameKind.STOP)]]

    def accept(wire: Wire, name: str | None) -> None:
        threading.Thread(target=answer, args=(wire, answers.pop(0)), daemon=True).start()

    def answer(wire: Wire, frames: list[Frame]) -> None:
        wire.receive(None)
        for frame in frames:
            wire.send(frame.to_bytes())

    server, port = listen("127.0.0.1:0", None, 1 << 20, 2, accept)
    try:
        assert counted(f"127.0.0.1:{port}", PATIENT) == [
            ("out", "HELLO"),  # nobody says anything
            ("out", "HELLO"),
            ("in", "WELCOME"),
            ("in", "STOP"),
            ("out", "BYE"),
        ]
    finally:
        server.close()


def test_a_connection_that_breaks_is_told_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=break_off, args=(listening,), daemon=True).start()
        wire = dial(f"127.0.0.1:{listening.getsockname()[1]}", None, 1 << 20)
        wire.send(json_frame(FrameKind.HELLO, {}).to_bytes())
        with pytest.raises(LinkError, match=r"^the connection broke\.$"):
            wire.receive(PATIENT)
        with pytest.raises(LinkError):
            wire.send(b"more")
        wire.close()


def break_off(listening: socket.socket) -> None:
    """Let somebody in, hear a word and hang up rudely."""
    link, _ = listening.accept()
    assert link.recv(len(PREFACE), socket.MSG_WAITALL) == PREFACE
    link.sendall(SIGN_OF_LIFE)
    link.recv(1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()
