"""Bare exchanges between a server and parties as processes, with mTLS: messages of given sizes, and nothing else.

Over gRPC streams, as many libraries are built, and over plain TLS sockets, which is the least.
"""

from __future__ import annotations

import multiprocessing
import queue
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from ssl import SSLSocket

import grpc

from efvfl.network.identity import certificates
from efvfl.network.links.tls import tls_context

PROTOCOLS = ["bare"]
Exchange = Callable[[], None]  # everybody is sent a message, and answers


@contextmanager
def _parties(
    work: Callable[..., None], folder: Path, names: Sequence[str], port: int, sizes: tuple[int, int]
) -> Iterator[None]:
    """Run this as one process for every party."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(folder, name, port, *sizes), daemon=True) for name in names]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


# gRPC.


def _party_over_grpc(folder: Path, name: str, port: int, up: int, down: int) -> None:
    """Answer every request with `up` bytes."""
    identity = certificates.load(folder / "certs", name)
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
    channel = grpc.secure_channel(
        f"127.0.0.1:{port}", credentials, [("grpc.ssl_target_name_override", certificates.SERVER)]
    )
    out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    out.put(b"")
    for _ in channel.stream_stream("/bare/Link")(iter(out.get, None)):
        out.put(bytes(up))


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Puts what comes on any stream in one queue, and sends on each stream what is in its own."""

    def __init__(self, parties: int) -> None:
        """Begin with no stream."""
        self.replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.outs: list[queue.SimpleQueue[bytes | None]] = []
        self._readers = ThreadPoolExecutor(parties)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Take any stream."""
        return grpc.stream_stream_rpc_method_handler(self._link)

    def _read(self, incoming: Iterator[bytes]) -> None:
        try:
            for item in incoming:
                self.replies.put(item)
        except grpc.RpcError:
            return

    def _link(self, incoming: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        context.add_callback(lambda: out.put(None))
        self.outs.append(out)
        self._readers.submit(self._read, incoming)
        while (item := out.get()) is not None:
            yield item


@contextmanager
def over_grpc(folder: Path, names: Sequence[str], up: int, down: int) -> Iterator[Exchange]:
    """Exchange messages over gRPC streams."""
    identity = certificates.load(folder / "certs", certificates.SERVER)
    service, server = _Service(len(names)), grpc.server(ThreadPoolExecutor(2 * len(names)))
    server.add_generic_rpc_handlers((service,))
    credentials = grpc.ssl_server_credentials(
        [(identity.key, identity.certificate)], identity.ca, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()

    def exchange() -> None:
        for out in service.outs:
            out.put(bytes(down))
        for _ in service.outs:
            service.replies.get(timeout=60)

    try:
        with _parties(_party_over_grpc, folder, names, port, (up, down)):
            for _ in names:
                service.replies.get(timeout=120)
            yield exchange
    finally:
        server.stop(None).wait(5)


# A plain TLS socket.


def _take(link: SSLSocket, count: int) -> bool:
    """Receive so many bytes; return False at the end of the connection."""
    while count and (data := link.recv(count)):
        count -= len(data)
    return not count


def _party_over_tls(folder: Path, name: str, port: int, up: int, down: int) -> None:
    """Answer every `down` bytes with `up` bytes."""
    context = tls_context(certificates.load(folder / "certs", name), PROTOCOLS)
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname=certificates.SERVER) as link,
    ):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _take(link, down):
            link.sendall(bytes(up))


@contextmanager
def over_tls(folder: Path, names: Sequence[str], up: int, down: int) -> Iterator[Exchange]:
    """Exchange messages over TLS sockets, all of which one thread reads in turn."""
    context = tls_context(certificates.load(folder / "certs", certificates.SERVER), PROTOCOLS, server=True)
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listening.settimeout(120)
        stack.enter_context(_parties(_party_over_tls, folder, names, listening.getsockname()[1], (up, down)))
        links = []
        for _ in names:
            link = stack.enter_context(context.wrap_socket(listening.accept()[0], server_side=True))
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            links.append(link)

        def exchange() -> None:
            for link in links:
                link.sendall(bytes(down))
            for link in links:
                _take(link, up)

        yield exchange
