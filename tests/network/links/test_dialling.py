"""A party's side of a connection: what leaves is what is counted, and what a server says is only a text."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import grpc
import pytest
from warm_processes import PATIENT

from efvfl.errors import AbsentError, LinkError
from efvfl.network.links.dialling import Dialler, PartyTimeouts
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.network.links.grpc import METHOD, dial, listen
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
        server.stop(None).wait()


class _Abort(grpc.GenericRpcHandler):  # type: ignore[misc]
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.stream_stream_rpc_method_handler(self._link) if details.method == METHOD else None

    def _link(self, incoming: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "go\x1b[2J away\r\n")
        yield b""


@contextmanager
def aborting(how: grpc.GenericRpcHandler) -> Iterator[str]:
    """A server that ends every stream with a text of its own."""
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((how,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_connection_that_breaks_is_told_without_the_words_of_the_library() -> None:
    class Break(_Abort):
        def _link(self, incoming: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            yield next(incoming)
            next(incoming)  # the first has left
            context.abort(grpc.StatusCode.UNAVAILABLE, "Stream removed (recvmsg:Connection reset by peer (104))")

    with aborting(Break()) as address:
        wire = dial(address, None, 1 << 20)
        for _ in range(2):
            wire.send(json_frame(FrameKind.HELLO, {}).to_bytes())
        wire.receive(PATIENT)
        with pytest.raises(LinkError) as caught:
            wire.receive(PATIENT)
        wire.close()
    assert str(caught.value) == "the connection broke."


@pytest.mark.attack(
    by="the label holder",
    tries="ends a party's stream with a status text that has escape sequences",
    outcome="control characters are replaced before the text is logged",
)
def test_a_status_text_of_the_server_is_printable() -> None:
    with aborting(_Abort()) as address:
        wire = dial(address, None, 1 << 20)
        with pytest.raises(LinkError) as caught:
            wire.receive(PATIENT)
        wire.close()
    assert str(caught.value) == "PERMISSION_DENIED: go?[2J away??"
