"""The emulated line of the benchmarks: what goes in comes out, and the table says what was measured."""

import socket

import pytest
from benchmarks import emulated_line, link
from warm_processes import PATIENT, WARM


@pytest.mark.slow
def test_a_line_carries_bytes_both_ways_unchanged() -> None:
    sent, answer = bytes(range(256)) * 100, b"back" * 1000
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENT)
        ours, theirs = WARM.Pipe()
        process = WARM.Process(target=emulated_line.lines, args=(server.getsockname()[1], 1, theirs), daemon=True)
        process.start()
        try:
            assert ours.poll(PATIENT)
            with socket.create_connection(("127.0.0.1", ours.recv()[0]), timeout=PATIENT) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                there, _ = server.accept()
                with there, there.makefile("rb") as file:
                    there.settimeout(PATIENT)
                    assert file.read() == sent  # also that the end arrives
                    there.sendall(answer)
                with client.makefile("rb") as file:
                    assert file.read() == answer
        finally:
            process.kill()
            process.join()


def test_the_table_compares_with_svfl_of_the_same_batch() -> None:
    found = [
        link.Measured(0, "SVFL", "uncompressed", 64, [[64, 0.9]], 64, 256.0),
        link.Measured(0, "EF-VFL", "top-k 1%", 80, [[80, 0.9]], 80, 20.0),
        link.Measured(0, "CVFL", "top-k 1%", 0, [[100, 0.4]], 12, 3.0),
    ]
    lines = link.table_of(found).splitlines()[2:]
    assert lines[1] == "| full | EF-VFL | top-k 1% | 0.250 s | 80 | 20.0 s | 12.8 x |"
    assert lines[2] == "| full | CVFL | top-k 1% | 0.250 s | not reached |  |  |"
