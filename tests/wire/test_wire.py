"""Bytes from another organisation: what is ours comes back exactly, what is not raises `WireError` and nothing else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from efvfl.compress import (
    QSGD,
    REGISTRY,
    Cast,
    Columns,
    Identity,
    LowRank,
    Natural,
    Product,
    RandK,
    RandomTopK,
    Sign,
    TopK,
    TopKQSGD,
    Uniform,
    columns,
    decode,
    positions,
    symbols,
    uniform,
)
from efvfl.compress.base import MAX_ENTRIES, as_table
from efvfl.core.channel import unpack
from efvfl.errors import ProtocolError, WireError
from efvfl.wire.message import MAX_PACKETS, Kind, Message
from efvfl.wire.packet import DTYPES, Packet, Reader, number

F4, F8, U1 = DTYPES
BLOCK = np.array([[0.5, -3, 0, 1], [2, -0.25, 4, -1.5]], dtype=np.float32)


def fuzz(examples: int) -> settings:
    """Return settings that try the same examples on every run."""
    return settings(
        deadline=None, derandomize=True, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )


def _samples() -> list[Packet]:
    rng = np.random.default_rng(0)
    compressors = [cls() for cls in REGISTRY.values()]
    compressors += [TopK(0.7), TopK(1.0), RandK(1.0), QSGD(1), QSGD(8), QSGD(16), Cast("bf16"), TopKQSGD(0.5, 8)]
    compressors += [Uniform(1), Uniform(3, "row"), Uniform(2, "clip"), Uniform(1, "row", rounding="random")]
    compressors += [
        Columns(2),
        Columns(6),
        LowRank(1, levels=1),
        LowRank(3),
        Natural("nearest"),
        Product(3, 2),
        Product(1, 1, iterations=0),
        RandomTopK(0.6, others=0.3),
        RandomTopK(k=1, per="row"),
    ]
    found = []
    for compressor in compressors:
        for dtype, shape in ((F4, (5, 8)), (F8, (3,)), (F4, (2, 3, 4)), (F4, (0, 4)), (F4, (150,))):
            block = rng.standard_normal(shape).astype(dtype)
            found.append(compressor.encode(block, int(rng.integers(1 << 62))))
        found.append(compressor.encode(np.zeros((4, 4), np.float32)))
    return found


SAMPLES = _samples()  # valid packets of every codec


def _symbols_again(reader: Reader, count: int, dtype: np.dtype[np.generic]) -> bytes:
    levels = reader.number("levels")
    size = reader.take(dtype.itemsize, "level size")
    if not any(size):
        return number(levels) + size
    return number(levels) + size + symbols.encode(symbols.decode(reader, count, levels), levels)


def _topk_again(packet: Packet) -> bytes:
    reader = Reader(packet.body)
    places = positions.read(reader, packet.entries)
    values = np.frombuffer(packet.body, packet.dtype, places.size, reader.place)
    return positions.encode(places, packet.entries) + values.tobytes()


def _randk_again(packet: Packet) -> bytes:
    reader = Reader(packet.body)
    count, seed = reader.number("count"), reader.take(8, "seed")
    return number(count) + seed + np.frombuffer(packet.body, packet.dtype, count, reader.place).tobytes()


def _topk_qsgd_again(packet: Packet) -> bytes:
    reader = Reader(packet.body)
    places = positions.read(reader, packet.entries)
    return positions.encode(places, packet.entries) + _symbols_again(reader, places.size, packet.dtype)


def _uniform_again(packet: Packet) -> bytes:
    reader = Reader(packet.body)
    levels, form = reader.number("levels"), reader.byte("form")
    size = reader.take(packet.dtype.itemsize, "level size")
    start = number(levels) + bytes((form,)) + size
    if not any(size):
        return start
    scales = b""
    if form & 1:
        scales = uniform._write_exponents(uniform._read_exponents(reader, packet.entries // packet.shape[-1]))
    return start + scales + symbols.encode(symbols.decode(reader, packet.entries, levels), levels)


def _natural_again(packet: Packet) -> bytes:
    reader = Reader(packet.body)
    start = reader.take(3, "rounding and largest exponent")
    span = reader.number("span")
    told = symbols.encode(symbols.decode(reader, packet.entries, span), span) if span else b""
    return start + number(span) + told


def _columns_again(packet: Packet) -> bytes:
    reader = Reader(packet.body)
    size = reader.take(packet.dtype.itemsize, "size")
    if not any(size):
        return size
    rows, count = as_table(packet.shape)
    classes = symbols.decode(reader, count, columns._CLASSES)
    told = symbols.encode(classes, columns._CLASSES)
    for where, largest in ((classes == 0, columns.PARTS * columns.LARGEST), (classes > 0, columns.LARGEST)):
        if where.any():
            told += symbols.encode(symbols.decode(reader, int(where.sum()), largest), largest)
    for each in np.unique(classes[classes > 0]).tolist():
        count = rows * int((classes == each).sum())
        told += symbols.encode(symbols.decode(reader, count, (1 << each) - 1), (1 << each) - 1)
    return size + told


def _low_rank_again(packet: Packet) -> bytes:
    reader = Reader(packet.body)
    rank = reader.number("rank")
    if rank == 0:
        return number(0)
    levels, form = reader.number("levels"), reader.byte("form")
    told = number(rank) + number(levels) + bytes((form,)) + reader.take(6, "exponent and size")
    rows, count = as_table(packet.shape)
    if form:
        told += reader.take(4 * rank * max(rows, count), "long factor")
    for side in (min(rows, count),) if form else (max(rows, count), min(rows, count)):
        told += symbols.encode(symbols.decode(reader, rank * side, levels), levels)
    return told


def _product_again(packet: Packet) -> bytes:
    reader = Reader(packet.body)
    count = reader.number("codes")
    if count == 0:
        return number(0)
    part, form = reader.number("part"), reader.byte("form")
    told = number(count) + number(part) + bytes((form,))
    told += reader.take(packet.dtype.itemsize * (count * part if form else 1), "codebook or size")
    if not form:
        told += symbols.encode(symbols.decode(reader, count * part, 127), 127)
    rows, width = as_table(packet.shape) if len(packet.shape) > 1 else (1, packet.entries)
    chosen = symbols.decode(reader, rows * -(-width // part), (count + 1) // 2)
    return told + symbols.encode(chosen, (count + 1) // 2)


# What a body says, written anew: an accepted body must be the only way to say it.
AGAIN: dict[str, Callable[[Packet], bytes]] = {
    "identity": lambda packet: decode(packet).tobytes(),
    "topk": _topk_again,
    "randk": _randk_again,
    "qsgd": lambda packet: _symbols_again(Reader(packet.body), packet.entries, packet.dtype),
    "sign": lambda packet: Sign().encode(np.asarray(decode(packet), dtype=packet.dtype)).body,
    "cast": lambda packet: packet.body[:3] + np.frombuffer(packet.body, "<u2", packet.entries, 3).tobytes(),
    "topk_qsgd": _topk_qsgd_again,
    "uniform": _uniform_again,
    "natural": _natural_again,
    "low_rank": _low_rank_again,
    "columns": _columns_again,
    "product": _product_again,
    "random_topk": _topk_again,
}
NAMES = {cls.code: name for name, cls in REGISTRY.items()}


def accepts(packet: Packet, limit: int = 1 << 16) -> bool:
    """Decode: refused with `WireError`, or a finite block of the stated shape and dtype with no other encoding."""
    try:
        block = decode(packet, limit)
    except WireError:
        return False
    assert block.shape == packet.shape
    assert block.dtype == packet.dtype
    assert np.isfinite(block).all()
    assert AGAIN[NAMES[packet.codec]](packet) == packet.body
    return True


def read_packet(data: bytes) -> bool:
    """Read and decode a packet, as above; accepted bytes must come out again."""
    try:
        packet = Packet.from_bytes(data)
    except WireError:
        return False
    assert packet.to_bytes() == data
    return accepts(packet)


def read_message(data: bytes) -> bool:
    """Read a message and decode its packets, as above; accepted bytes must come out again."""
    try:
        message = Message.from_bytes(data)
    except WireError:
        return False
    assert message.to_bytes() == data
    accepted = [accepts(packet) for held in message.packets.values() for packet in held]
    return all(accepted)


# Strategies.

dimensions = st.lists(st.integers(0, 200) | st.integers(0, 1 << 62), max_size=4).map(tuple)
shapes = dimensions.filter(lambda shape: prod(max(side, 1) for side in shape) < 1 << 48)
packets = st.builds(Packet, st.integers(0, 255), st.sampled_from(DTYPES), shapes, st.binary(max_size=300))
numbers = st.integers(0, 200) | st.integers(0, (1 << 63) - 1)


def _messages(packets: st.SearchStrategy[Packet]) -> st.SearchStrategy[Message]:
    held = st.lists(packets, min_size=1, max_size=3).map(tuple)
    blocks = st.dictionaries(numbers, held, max_size=4)
    return st.builds(Message, st.sampled_from(Kind), numbers, blocks, st.booleans())


messages = _messages(packets)


def mutated(data: bytes, chance: Random) -> bytes:
    """Return bytes with one to three small accidents."""
    spoilt = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        start = chance.randint(0, len(spoilt))
        stop = chance.randint(start, min(len(spoilt), start + 12))
        accident = chance.choice(("flip", "set", "cut", "insert", "repeat", "drop"))
        if accident == "flip" and start < len(spoilt):
            spoilt[start] ^= 1 << chance.randint(0, 7)
        elif accident == "set" and start < len(spoilt):
            spoilt[start] = chance.choice((0, 1, 2, 15, 48, 49, 127, 128, 254, 255))
        elif accident == "cut":
            del spoilt[start:]
        elif accident == "insert":
            spoilt[start:start] = chance.randbytes(chance.randint(1, 4))
        elif accident == "repeat":
            spoilt[stop:stop] = spoilt[start:stop]
        elif accident == "drop":
            del spoilt[start:stop]
    return bytes(spoilt)


def accidents(originals: Sequence[bytes], count: int, seed: str) -> Iterator[bytes]:
    """Yield so many mutated ones of these, the same on every run. (Drawn by hypothesis, each took milliseconds.)"""
    chance = Random(seed)
    for _ in range(count):
        yield mutated(chance.choice(originals), chance)


def test_every_codec_is_tried() -> None:
    assert set(AGAIN) == set(REGISTRY) == {NAMES[packet.codec] for packet in SAMPLES}
    assert all(accepts(replace(packet, decoded=None)) for packet in SAMPLES)


# What is ours comes back.


@fuzz(150)
@given(messages)
def test_messages_come_back(message: Message) -> None:
    data = message.to_bytes()
    back = Message.from_bytes(data)
    assert back == message
    assert type(back.kind) is Kind
    assert type(back.hold) is bool
    assert back.to_bytes() == data
    assert message.size == len(data)


@fuzz(200)
@given(packets)
def test_packets_come_back(packet: Packet) -> None:
    data = packet.to_bytes()
    assert Packet.from_bytes(data) == packet
    assert data == packet.header() + packet.body


@fuzz(300)
@given(numbers)
def test_numbers_come_back_in_their_shortest_form(value: int) -> None:
    data = number(value)
    assert Reader(data).number("a number") == value
    assert len(data) == max(1, -(-value.bit_length() // 7))


def test_blocks_are_written_in_increasing_order() -> None:
    one, two = Identity().encode(BLOCK), TopK().encode(BLOCK)
    forward = Message(Kind.RELAY, 3, {1: (one,), 7: (two, one)})
    backward = Message(Kind.RELAY, 3, {7: (two, one), 1: (one,)})
    assert forward.to_bytes() == backward.to_bytes()
    assert list(Message.from_bytes(backward.to_bytes()).packets) == [1, 7]


def test_bytes_travel_as_they_are() -> None:
    packet = Packet(Identity.code, U1, (2, 3), b"\x00\x01\x02\xfd\xfe\xff")
    assert decode(Packet.from_bytes(packet.to_bytes())).tolist() == [[0, 1, 2], [253, 254, 255]]


def test_the_encoding_is_fixed() -> None:
    """The wire is an agreement between organisations: these bytes must never change within a version."""
    golden = {
        Identity(): "00020204200000003f000040c0000000000000803f00000040000080be000080400000c0bf",
        TopK(): "010202040701020a00008040",
        RandK(): "020202040d0107000000000000000000003f",
        QSGD(): "030202040b0fdf16bc3efff13c595d5e",
        Sign(): "04020204050000c43fa2",
        Cast("fp16"): "050202041300f4ff006800f20000006c007000e4007400ee",
        Cast("bf16"): "0502020413010300803dc0be0000003e803e00bd003f40be",
        TopKQSGD(0.5, 2): "060202040b0400d2030120a53fff6105",
        RandomTopK(0.5, others=0.3): "0902020413040072000040c000000040000080be00008040",
        Columns(2): "0a02020417cdcc4c3fffd23449ff0340004005400140ffd900ff7372",
        Columns(4): "0a020204194316323eff545551ff0c40ff3f17400640ffe63d00ffcf877c",
        LowRank(1): "0b02020410011f000300a4b8993cffeee847ff9c0f",
        Natural(): "080202040901020005ff39850736",
        Natural("nearest"): "080202040900020005ff39850726",
        Product(2, 2): "0c0202040e0202000402013dff8f20fe4fff16",
    }
    assert {compressor: compressor.encode(BLOCK, 7).to_bytes().hex() for compressor in golden} == golden
    assert TopK(0.5).encode(BLOCK.astype(np.float64)).to_bytes().hex() == (
        "01120204230400d200000000000008c000000000000000400000000000001040000000000000f8bf"
    )
    message = Message(Kind.REPORT, 300, {2: (Sign().encode(BLOCK),)}, hold=True)
    assert message.to_bytes().hex() == "45460103ac02010204020204050000c43fa2"


# What is not ours is refused, whatever it is.


@fuzz(400)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_ours(data: bytes) -> None:
    read_message(data)
    read_message(b"EF\x01" + data)
    read_packet(data)


@fuzz(600)
@given(st.sampled_from(sorted(NAMES)), st.sampled_from(DTYPES), st.integers(0, 40), st.binary(max_size=60))
def test_random_bodies_are_refused_or_ours(codec: int, dtype: np.dtype[np.generic], entries: int, body: bytes) -> None:
    accepts(Packet(codec, dtype, (entries,), body))


def test_mutated_packets_are_refused_or_ours() -> None:
    accepted = [read_packet(data) for data in accidents([packet.to_bytes() for packet in SAMPLES], 4000, "packets")]
    assert 200 < sum(accepted) < 2000  # both happen


def test_mutated_bodies_are_refused_or_ours() -> None:
    accepted, chance = 0, Random("bodies")
    for _ in range(4000):
        packet = chance.choice(SAMPLES)
        accepted += accepts(replace(packet, body=mutated(packet.body, chance), decoded=None))
    assert 200 < accepted < 2000


def test_mutated_messages_are_refused_or_ours() -> None:
    chance = Random("exchanges")
    originals = []
    for _ in range(200):
        places = chance.sample([0, 1, 2, 7, 127, 128, 1000, 1 << 62], chance.randint(0, 4))
        blocks = {place: tuple(chance.choices(SAMPLES, k=chance.randint(1, 3))) for place in places}
        step = chance.choice([0, 1, 127, 128, 70_000, (1 << 63) - 1])
        originals.append(Message(chance.choice(list(Kind)), step, blocks, chance.random() < 0.5).to_bytes())
    assert all(read_message(data) for data in originals)
    accepted = [read_message(data) for data in accidents(originals, 2000, "messages")]
    assert 100 < sum(accepted) < 1000


@pytest.mark.slow
@fuzz(600)
@given(
    st.sampled_from(SAMPLES),
    st.sampled_from(sorted(NAMES)) | st.none(),
    st.sampled_from(DTYPES) | st.none(),
    st.lists(st.integers(0, 60), max_size=4).map(tuple) | st.none(),
)
def test_tampered_headers_are_refused_or_ours(
    packet: Packet, codec: int | None, dtype: np.dtype[np.generic] | None, shape: tuple[int, ...] | None
) -> None:
    changes: dict[str, Any] = {"codec": codec, "dtype": dtype, "shape": shape}
    changes = {name: value for name, value in changes.items() if value is not None}
    read_packet(replace(packet, decoded=None, **changes).to_bytes())


@pytest.mark.slow
def test_every_flipped_bit_is_refused_or_ours() -> None:
    accepted = 0
    for packet in SAMPLES:
        data = bytearray(packet.to_bytes()[:24])
        rest = packet.to_bytes()[24:]
        for bit in range(8 * len(data)):
            data[bit >> 3] ^= 1 << (bit & 7)
            accepted += read_packet(bytes(data) + rest)
            data[bit >> 3] ^= 1 << (bit & 7)
    assert accepted > 1000  # a flipped bit of a value is another value, so that the checks of `accepts` have run


def test_every_cut_is_refused() -> None:
    message = Message(Kind.RELAY, 1000, {1: (SAMPLES[0], SAMPLES[6]), 200: (SAMPLES[12],)}).to_bytes()
    for size in range(len(message)):
        with pytest.raises(WireError):
            Message.from_bytes(message[:size])
    for packet in SAMPLES:
        data = packet.to_bytes()
        for size in range(len(data)):
            with pytest.raises(WireError):
                Packet.from_bytes(data[:size])
        for size in range(len(packet.body)):
            with pytest.raises(WireError):
                decode(replace(packet, body=packet.body[:size], decoded=None))


@pytest.mark.parametrize("extra", [b"\x00", b"\x01", b"\xff", bytes(8)])
def test_everything_added_is_refused(extra: bytes) -> None:
    with pytest.raises(WireError, match="expected the end of the message"):
        Message.from_bytes(Message(Kind.BEGIN, 0).to_bytes() + extra)
    for packet in SAMPLES:
        with pytest.raises(WireError, match="expected the end of the packet"):
            Packet.from_bytes(packet.to_bytes() + extra)
        with pytest.raises(WireError):
            decode(replace(packet, body=packet.body + extra, decoded=None))


def _read_symbols(data: bytes, count: int, largest: int) -> tuple[int, ...] | None:
    reader = Reader(data)
    try:
        told = symbols.decode(reader, count, largest)
        reader.end("symbols")
    except WireError:
        return None
    return tuple(told.tolist())


@pytest.mark.parametrize(("count", "largest"), [(0, 1), (1, 1), (3, 1), (4, 1), (2, 3), (2, 5), (1, 60)])
def test_symbols_and_their_bytes_are_one_to_one(count: int, largest: int) -> None:
    """Of all byte strings that are long enough, exactly one is accepted for each list of symbols."""
    expected = {
        symbols.encode(np.array(told, dtype=np.int32), largest): told
        for told in product(range(-largest, largest + 1), repeat=count)
    }
    assert max(map(len, expected)) <= 2
    strings = [bytes(text) for size in range(3) for text in product(range(256), repeat=size)]
    read = {data: told for data in strings if (told := _read_symbols(data, count, largest)) is not None}
    assert read == expected


@fuzz(300)
@given(st.integers(1, 1 << 16), st.integers(0, 17), st.lists(st.floats(-1, 1), max_size=300))
def test_symbols_of_every_size_come_back(largest: int, shift: int, values: list[float]) -> None:
    told = (np.array(values) * (largest >> shift)).astype(np.int32)
    data = symbols.encode(told, largest)
    assert _read_symbols(data, told.size, largest) == tuple(told.tolist())
    assert len(data) <= 1 + (told.size * (2 * largest).bit_length() + 7) // 8


# Nothing is believed before it is checked.


def _peak(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_blocks_beyond_the_limit_are_refused() -> None:
    for packet in SAMPLES:
        fresh = replace(packet, decoded=None)
        if packet.entries:
            with pytest.raises(WireError, match=f"expected a block of at most {packet.entries - 1:,} entries"):
                decode(fresh, limit=packet.entries - 1)
        assert decode(fresh, limit=packet.entries).shape == packet.shape
        for shape in ((MAX_ENTRIES + 1,), (1 << 40,), (1 << 20, 1 << 20)):
            giant = replace(packet, shape=shape, decoded=None)
            with pytest.raises(WireError, match=r"expected a block of at most 1,048,576 entries, got "):
                decode(Packet.from_bytes(giant.to_bytes()))


def _claims(entries: int) -> dict[str, Packet]:
    """Return packets of a few bytes, one of every codec, that claim a huge block; some of them rightly."""
    one = np.ones(1, F4).tobytes()
    everything = number(entries)  # all positions are kept: none are written
    bodies = {
        "identity": b"",
        "topk": number(0),
        "randk": number(0) + bytes(8),
        "qsgd": number(1 << 16) + one + b"\x00" + 16 * everything + b"\x00",  # every symbol passes every layer
        "sign": bytes(4),
        "cast": bytes(3),
        "topk_qsgd": everything + number(1 << 16) + one + b"\x00" + 13 * everything,
        "natural": bytes(4),
        "low_rank": bytes(1),
        "columns": bytes(4),
        "product": number(1 << 15) + number(1 << 10) + b"\x00" + one + b"\x00" + 16 * everything + b"\x00",
        "random_topk": number(0),
        "uniform": number(1 << 15) + b"\x00" + one + b"\x00" + 16 * everything + b"\x00",
    }
    return {name: Packet(REGISTRY[name].code, F4, (entries,), body) for name, body in bodies.items()}


@pytest.mark.attack(
    by="a party",
    tries="80 bytes of qsgd, or a few of any codec, that claim 2^26 entries (25 s and 2.4 GB before)",
    outcome="refused before anything is allocated: by the agreed shape, in Python at 2^20 entries",
)
@pytest.mark.parametrize("codec", list(REGISTRY))
def test_a_few_bytes_do_not_claim_a_huge_block(codec: str) -> None:
    for entries in (MAX_ENTRIES + 1, 1 << 26, 1 << 40):
        packet = Packet.from_bytes(_claims(entries)[codec].to_bytes())
        assert packet.size <= 120

        def by_default(packet: Packet = packet) -> None:
            with pytest.raises(WireError, match=r"expected a block of at most [\d,]+ entries"):
                decode(packet)

        def by_shape(packet: Packet = packet) -> None:
            with pytest.raises(ProtocolError, match=r"expected shape \(128, 16\)"):
                unpack(packet, (128, 16), torch.float32, "a report")

        assert _peak(by_default) < 1 << 16
        assert _peak(by_shape) < 1 << 16
    assert MAX_ENTRIES <= 1 << 20


@pytest.mark.attack(
    by="a party",
    tries="qsgd symbols of the agreed shape that pass all 16 layers, in 60 bytes",
    outcome="refused at the fourth layer: the coding is not canonical",
)
def test_layers_end_where_low_bits_should_have_been_used(monkeypatch: pytest.MonkeyPatch) -> None:
    layers: list[int] = []
    read = positions.read

    def noted(reader: Reader, limit: int) -> positions.Positions:
        layers.append(limit)
        return read(reader, limit)

    monkeypatch.setattr(positions, "read", noted)
    with pytest.raises(WireError, match="expected more low bits for symbols as large as these"):
        decode(_claims(5000)["qsgd"])
    assert layers == [5000] * 4


def test_memory_stays_within_the_limit() -> None:
    """Whatever a packet says, a decoder holds a few arrays of at most `limit` entries: 32 bytes an entry."""
    limit = 1 << 16
    all_kept, no_symbol = number(limit) + b"\x0f", b"\x00\x00"
    small = [  # a few bytes that rightly mean as many entries as the limit allows
        Packet(TopK.code, F8, (limit,), number(0)),
        Packet(RandK.code, F8, (limit,), number(0) + bytes(8)),
        Packet(Sign.code, F8, (limit,), bytes(8)),
        Packet(QSGD.code, F8, (limit,), b"\x0f" + np.ones(1).tobytes() + no_symbol),
        Packet(TopKQSGD.code, F8, (limit,), all_kept + bytes(8)),
        Packet(TopKQSGD.code, F8, (limit,), all_kept + np.ones(1).tobytes() + no_symbol),
    ]
    assert all(accepts(replace(packet)) for packet in small)
    altered = [replace(packet, shape=(limit - less,)) for packet in SAMPLES for less in (0, 1, limit // 2)]
    for packet in small + altered:

        def attempt(packet: Packet = packet) -> None:
            with suppress(WireError):
                decode(replace(packet, decoded=None), limit)

        assert _peak(attempt) <= 32 * limit


@pytest.mark.parametrize("dtype", [F4, F8], ids=str)
def test_counts_are_not_believed(dtype: np.dtype[np.generic]) -> None:
    """A handful of bytes that promise millions of entries are refused before room for these is made."""
    entries = 1 << 23
    one, size = b"\x01", np.ones(1, dtype).tobytes()
    bodies: dict[tuple[Any, bytes], str] = {
        (TopK, number(entries)): "bytes for the values of 8,388,608 positions",  # all: no positions are coded
        (TopK, number(entries - 1) + b"\x00\x01"): "bytes for the values of 8,388,607 positions",
        (TopK, number(entries // 2) + bytes(20)): "bytes for the values of 4,194,304 positions",
        (TopKQSGD, number(entries // 2) + bytes(20)): "19 bytes are too few for 4,194,304 positions",
        (TopK, number(entries + 1)): "expected at most 8,388,608 positions, got 8,388,609",
        (RandK, number(entries) + bytes(20)): "expected .* bytes for randk's values, got 12",
        (RandK, number(entries + 1) + bytes(20)): "expected at most 8,388,608 entries, got 8,388,609",
        (QSGD, one + size + b"\xff" + bytes(20)): "expected 2,097,152 bytes for symbols, got 20",
        (QSGD, one + size + b"\x05" + bytes(20)): "expected 5,242,880 bytes for low bits, got 20",
        (Identity, bytes(20)): r"expected [\d,]+ bytes for shape \(.*\), got 20",
        (Cast, bytes(20)): "expected 16,777,216 bytes for cast's values, got 17",
        (Sign, size + bytes(20)): "expected 1,048,576 bytes for signs, got 20",
    }
    for (cls, body), expected in bodies.items():
        packet = Packet(cls.code, dtype, (entries,), body)

        def refused(packet: Packet = packet, expected: str = expected) -> None:
            with pytest.raises(WireError, match=expected):
                decode(packet, limit=entries)

        assert _peak(refused) < 1 << 18, expected


def test_lengths_are_not_believed() -> None:
    head = b"EF\x01\x02\x00"
    for data in (
        head + number(MAX_PACKETS),
        head + number((1 << 63) - 1),
        head + b"\x01\x01\x00\x01\x05" + number((1 << 63) - 1),
        head + b"\x01\x01\x00\x01\x05" + number(1 << 40) + bytes(100),
    ):

        def refused(data: bytes = data) -> None:
            with pytest.raises(WireError):
                Message.from_bytes(data)

        assert _peak(refused) < 1 << 18


@pytest.mark.slow
def test_as_many_packets_as_a_message_may_have() -> None:
    """In as many blocks, or all in one."""
    packet = Packet(Identity.code, U1, (0,), b"")
    for packets in (dict.fromkeys(range(MAX_PACKETS), (packet,)), {0: (packet,) * MAX_PACKETS}):
        message = Message(Kind.RELAY, 0, packets)
        assert Message.from_bytes(message.to_bytes()) == message
    more = Message(Kind.RELAY, 0, {0: (packet,) * (MAX_PACKETS + 1)})
    with pytest.raises(WireError, match="at most 65,536 packets in one message, got 65,537"):
        Message.from_bytes(more.to_bytes())


# Each refusal says what was expected and what it got.

HEAD = b"EF\x01"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "expected 2 bytes for a message's first two bytes, got 0: the bytes were cut short or altered"),
        (b"GET / HTTP/1.1", "expected a message to start with b'EF', got b'GE': is the peer an efvfl participant"),
        (b"EF\x02\x00\x00\x00", "expected wire version 1, got 2: install the same release of efvfl on both sides"),
        (HEAD + b"\x18\x00\x00", "expected a message kind from 0 to 11, got 12"),
        (HEAD + b"\xff\x00\x00", "expected a message kind from 0 to 11, got 127"),
        (HEAD + b"\x02\x80\x00\x00", "a message's step uses more bytes than it needs"),
        (HEAD + b"\x02" + b"\xff" * 9 + b"\x01\x00", "a message's step does not fit in 63 bits"),
        (HEAD + b"\x02\x00" + number(MAX_PACKETS + 1), "expected at most 65,536 packets in one message, got 65,537"),
        (HEAD + b"\x02\x00\x01", "expected 1 bytes for a packet's block, got 0"),
        (
            HEAD + b"\x02\x00\x02\x02\x00\x20\x00\x01\x00\x20\x00",
            "expected blocks in increasing order, got block 1 after block 2",
        ),
        (HEAD + b"\x02\x00\x00\x07", "expected the end of the message, got 1 more bytes"),
    ],
)
def test_refused_messages(data: bytes, expected: str) -> None:
    with pytest.raises(WireError, match=expected):
        Message.from_bytes(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "expected 1 bytes for a packet's codec, got 0"),
        (b"\x00\x31\x01\x00", "expected a dtype code from 0 to 2, got 3"),
        (b"\x00\x05" + bytes(6), "expected a block of at most 4 dimensions, got 5"),
        (b"\x00\x02\x05", "expected 1 bytes for a packet's shape, got 0"),
        (b"\x00\x01\x85\x00\x00", "a packet's shape uses more bytes than it needs"),
        (b"\x00\x01\x05\x80\x00", "a packet's body length uses more bytes than it needs"),
        (b"\x00\x01" + number(1 << 48) + b"\x00", r"fewer than 2\^48 entries, got shape \(281474976710656,\)"),
        (
            b"\x00\x02\x00" + number(1 << 62) + b"\x00",
            r"fewer than 2\^48 entries, got shape \(0, 4611686018427387904\)",
        ),
        (b"\x00\x01\x01\x05abcd", "expected 5 bytes for a packet's body, got 4"),
        (b"\x00\x00\x04abcde", "expected the end of the packet, got 1 more bytes"),
    ],
)
def test_refused_packets(data: bytes, expected: str) -> None:
    with pytest.raises(WireError, match=expected):
        Packet.from_bytes(data)


ONE, TWO = np.float32(1).tobytes(), np.float32(2).tobytes()
NAN = np.float32(np.nan).tobytes()


def _column(of_class: int, middle: int, distances: list[int]) -> bytes:
    """Return what is said of one column that is not constant."""
    parts = (([of_class], columns._CLASSES), ([middle], columns.LARGEST), (distances, (1 << of_class) - 1))
    return b"".join(symbols.encode(np.array(told, np.int32), largest) for told, largest in parts)


NEGATIVE_ZERO = np.float32(-0.0).tobytes()


def _level(value: int) -> bytes:
    return symbols.encode(np.array([value], np.int32), 127)


def _code(*values: int) -> bytes:
    return symbols.encode(np.array(values, np.int32), 1)


def _told(*values: int) -> bytes:
    """Return symbols of at most 2."""
    return symbols.encode(np.array(values, np.int32), 2)


@pytest.mark.parametrize(
    ("codec", "entries", "body", "expected"),
    [
        (Identity, 2, ONE, r"expected 8 bytes for shape \(2,\), got 4"),
        (Identity, 1, NAN, "a value in a packet is not finite"),
        (TopK, 4, b"\x05", "expected at most 4 positions, got 5: the packet's count or shape is wrong"),
        (TopK, 4, b"\x01\x31\x01" + ONE, "expected a Rice parameter of at most 48, got 49"),
        (TopK, 4, b"\x01\x00\x10" + ONE, "a position is not below 4"),
        (TopK, 9, b"\x01\x03\x11" + ONE, "a position is not below 9"),
        (TopK, 4, b"\x01\x00\x06" + ONE, "padding bits are not zero"),
        (TopK, 4, b"\x01\x00\x00" + bytes(4), "the bits end too early"),
        (TopK, 4, b"\x01\x01\x02" + ONE, "expected the shortest Rice parameter 0, got 1: the coding is not canonical"),
        (TopK, 4, b"\x01\x00\x02" + NAN, "a value in a packet is not finite"),
        (TopK, 4, b"\x01\x00\x02\x00" + ONE, "expected the end of the topk body, got 1 more bytes"),
        (RandK, 2, b"\x03" + bytes(20), "expected at most 2 entries, got 3"),
        (RandK, 2, b"\x01" + bytes(8) + NAN, "a value in a packet is not finite"),
        (RandK, 2, b"\x01" + bytes(8) + ONE + b"\x00", "expected the end of the randk body, got 1 more bytes"),
        (QSGD, 2, b"\x00" + ONE, "expected 1 to 65,536 levels, got 0"),
        (QSGD, 2, number(65537) + ONE, "expected 1 to 65,536 levels, got 65,537"),
        (QSGD, 2, b"\x01" + NAN, "a value in a packet is not finite"),
        (QSGD, 2, b"\x01" + NEGATIVE_ZERO, r"expected a positive level size or 0, got -0\.0"),
        (QSGD, 2, b"\x01" + bytes(5), "expected the end of the qsgd body, got 1 more bytes"),
        (QSGD, 0, b"\x01" + ONE + b"\xff", r"expected level size 0 for an empty block, got 1\.0"),
        (QSGD, 2, b"\x02" + ONE + b"\xff\x3f", "expected symbols of at most 2, got 5"),
        (QSGD, 2, b"\x01" + ONE + b"\xff\x15", "padding bits after symbols are not zero"),
        (QSGD, 2, b"\x01" + ONE + b"\xff\x05", "expected symbols in layers, which are shorter, got a fixed width"),
        (QSGD, 2, b"\x01" + ONE + b"\x11\x00", "expected at most 16 low bits, got 17"),
        (QSGD, 8, b"\x07" + ONE + b"\x01\x00\x00", "expected 0 low bits, got 1: the coding is not canonical"),
        (QSGD, 2, b"\x01" + ONE + b"\x00\x02\x02\x00\x00", "expected symbols of at most 1, got 2"),
        (QSGD, 1, b"\x04" + ONE + b"\x01\x01\x01\x01\x00", "expected symbols of at most 4, got 5"),
        (
            QSGD,
            2,
            b"\x01" + ONE + b"\x00\x01\x00\x01\x00\x00",
            "expected symbols in a fixed width, which is shorter, got layers",
        ),
        (QSGD, 2, b"\x01" + ONE + b"\x00\x02\x00\x04", "padding bits after signs are not zero"),
        (Sign, 3, NAN, "a value in a packet is not finite"),
        (Sign, 3, NEGATIVE_ZERO, r"expected a positive scale or 0, got -0\.0"),
        (Sign, 3, np.float32(-1).tobytes() + b"\x00", r"expected a positive scale or 0, got -1\.0"),
        (Sign, 3, ONE + b"\x08", "padding bits after signs are not zero"),
        (Sign, 3, bytes(5), "expected the end of the sign body, got 1 more bytes"),
        (Sign, 0, ONE, r"expected scale 0 for an empty block, got 1\.0"),
        (Cast, 1, b"\x02\x00\x00\x00\x00", "expected cast format 0 or 1, got 2"),
        (Cast, 1, b"\x00\x00\x00\x00\x7c", "a value in a packet is not finite"),
        (Cast, 1, b"\x01\x00\x00\xc0\x7f", "a value in a packet is not finite"),
        (Cast, 1, b"\x00\x00\x00\x00\x3c", r"expected the largest scaled value between 16384 and 32768, got 1\.0"),
        (Cast, 1, b"\x01\x00\x00\x00\x40", r"expected the largest scaled value between 0\.5 and 1, got 2\.0"),
        (Cast, 1, b"\x01\x01\x00\x00\x00", "expected an exponent from -148 to 128, or 0 for a zero block, got 1"),
        (Cast, 1, b"\x01\x81\x00\x80\x3f", "expected an exponent from -148 to 128, or 0 for a zero block, got 129"),
        (Cast, 1, b"\x00\x00\x00\x00\x00\x00", "expected the end of the cast body, got 1 more bytes"),
        (TopKQSGD, 4, b"\x05", "expected at most 4 positions, got 5"),
        (TopKQSGD, 4, b"\x01\x00\x02\x01" + bytes(5), "expected the end of the topk_qsgd body, got 1 more bytes"),
        (RandomTopK, 4, b"\x05", "expected at most 4 positions, got 5: the packet's count or shape is wrong"),
        (Columns, 2, NAN, "a value in a packet is not finite"),
        (Columns, 2, NEGATIVE_ZERO, r"expected a positive size of a step or 0, got -0\.0"),
        (Columns, 2, bytes(5), "expected the end of the columns body, got 1 more bytes"),
        (Columns, 0, ONE, r"expected size 0 for an empty block, got 1\.0"),
        (Columns, 2, ONE + symbols.encode(np.array([-1], np.int32), 16), "expected classes of columns from 0 to 16"),
        (Columns, 2, ONE + _column(2, 0, [1, -1]), "distances from the middle of every column, of its class"),
        (Columns, 3, ONE + _column(1, 0, [1, 1, 0]), "distances from the middle of every column, of its class"),
        (Columns, 3, ONE + _column(1, 1 << 14, [0, 0, 1]), "expected at most 16,384 steps from zero, got 16,385"),
        (LowRank, 4, b"\x02", "expected a rank of at most 1, got 2"),
        (LowRank, 0, b"\x01", "expected a rank of at most 0, got 1"),
        (LowRank, 4, b"\x00\x00", "expected the end of the low_rank body, got 1 more bytes"),
        (LowRank, 4, b"\x01\x00\x00", "expected 1 to 32,768 levels and form 0 or 1, got 0 and 0"),
        (LowRank, 4, b"\x01\x01\x02", "expected 1 to 32,768 levels and form 0 or 1, got 1 and 2"),
        (LowRank, 4, b"\x01\x01\x00\x00\x00" + bytes(4), "expected a positive level size and an exponent from -148 to"),
        (LowRank, 4, b"\x01\x01\x00\x81\x00" + ONE, "expected a positive level size and an exponent from -148 to 128"),
        (LowRank, 1, b"\x01\x01\x01\x00\x00" + ONE + NAN, "a value in a packet is not finite"),
        (
            LowRank,
            2,
            b"\x01\x02\x00\x00\x00" + ONE + symbols.encode(np.array([0, 1], np.int32), 2),
            "of magnitude 2 in every",
        ),
        (
            LowRank,
            1,
            b"\x01\x02\x01\x00\x00" + ONE + ONE + symbols.encode(np.array([1], np.int32), 2),
            "of magnitude 2 in the",
        ),
        (Product, 2, bytes(2), "expected the end of the product body, got 1 more bytes"),
        (Product, 0, b"\x01\x00", "expected at most 0 codes, got 1"),
        (Product, 0, b"\x01\x01", "expected parts that cut rows of 0 evenly, got 1"),
        (Product, 2, b"\x01\x00", "expected parts that cut rows of 2 evenly, got 0"),
        (Product, 4, b"\x01\x03", "expected parts that cut rows of 4 evenly, got 3"),
        (Product, 4, b"\x03\x02", "expected at most 2 codes, got 3"),
        (Product, 1, b"\x01\x01\x02", "expected product's form 0 or 1, got 2"),
        (Product, 1, b"\x01\x01\x00" + NAN, "a value in a packet is not finite"),
        (Product, 1, b"\x01\x01\x00" + bytes(4), r"expected a positive level size, got 0\.0"),
        (Product, 1, b"\x01\x01\x00" + ONE + _level(126), "of magnitude 127 in the codebook: its size is wrong"),
        (Product, 1, b"\x01\x01\x01" + NAN, "a value in a packet is not finite"),
        (Product, 1, b"\x01\x01\x01" + NEGATIVE_ZERO, "expected codes that differ from zero and from each other"),
        (Product, 2, b"\x02\x01\x01" + ONE + ONE, "expected codes that differ from zero and from each other"),
        (Product, 2, b"\x01\x01\x01" + ONE + _code(1, -1), "expected at most 1 codes, got 2"),
        (Product, 2, b"\x01\x01\x01" + ONE + _code(0, 0), "the most frequent one first: the coding is not canonical"),
        (Product, 2, b"\x02\x01\x01" + ONE + TWO + _code(-1, 1), "the most frequent one first"),
        (Product, 3, b"\x02\x01\x01" + ONE + TWO + _code(1, -1, -1), "the most frequent one first"),
        (Natural, 1, b"\x02\x00\x00\x00", "expected natural's rounding 0 or 1, got 2"),
        (Natural, 1, b"\x00\x01\x00\x00", "expected exponent 0 for a zero block, got 1"),
        (Natural, 1, bytes(5), "expected the end of the natural body, got 1 more bytes"),
        (Natural, 1, b"\x00\x81\x00\x01", "expected exponents from -149 to 128, got 1 of them up to 129"),
        (Natural, 1, b"\x00\x6c\xff\x03", "expected exponents from -149 to 128, got 3 of them up to -148"),
        (Natural, 2, b"\x00\x00\x00\x01\x00\x00", "expected symbols of magnitude 1 and 1: the largest exponent"),
        (Natural, 0, b"\x00\x00\x00\x01\xff", "expected symbols of magnitude 1 and 1: the largest exponent"),
    ],
)
def test_refused_bodies(codec: Any, entries: int, body: bytes, expected: str) -> None:
    with pytest.raises(WireError, match=expected):
        decode(Packet(codec.code, F4, (entries,), body))


def test_large_symbols_come_in_the_width_they_need() -> None:
    """Above 16 layers the rest comes in a fixed width; no other width says the same."""
    told = np.zeros(200, dtype=np.int32)
    told[[3, 50]] = (20, -18)
    data = symbols.encode(told, 255)
    assert _read_symbols(data, 200, 255) == tuple(told.tolist())
    place = data.rindex(b"\x03")  # the excesses over 16, 4 and 2, in three bits
    assert data[place:] == b"\x03\x14\x02"
    for wrong, expected in (
        (b"\x04\x24\x02", "expected large symbols in 3 bits, got 4: the coding is not canonical"),
        (b"\x19" + bytes(8), "expected large symbols of at most 24 bits, got 25"),
        (b"\x03\x54\x02", "padding bits after large symbols are not zero"),
        (b"\x18\xff\xff\xff\xff\xff\xff\x02", "expected symbols of at most 255, got 16777231"),
    ):
        with pytest.raises(WireError, match=expected):
            symbols.decode(Reader(data[:place] + wrong), 200, 255)


def test_unknown_codecs_and_wrong_dtypes_are_refused() -> None:
    with pytest.raises(WireError, match=r"expected one of the registered codecs \[0, 1, 2, 3, 4, 5, 6"):
        decode(Packet(200, F4, (1,), b""))
    for name, cls in REGISTRY.items():
        if name != "identity":
            with pytest.raises(WireError, match="expected a block of float32 or float64 for this codec, got uint8"):
                decode(Packet(cls.code, U1, (1,), b""))
