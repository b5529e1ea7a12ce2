"""A fuzz target: a decoder that strangers reach, and what must hold for any bytes.

A target's function feeds bytes to the decoder and takes the documented errors as they come. Whatever else it raises
is a fault, as is a value that does not survive its way back, and an input that costs more than its size allows.
"""

from __future__ import annotations

import contextlib
import gc
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.speed import slowness
from weft.protocols.batch import (
    HEADER_PAIRS_MAX,
    ClockReading,
    ClockState,
    HeaderPairs,
    columns_from_lists,
    encode,
    records,
)

# Inputs are bytes under atheris. hypofuzz and ``fuzz_one_input`` of Hypothesis mutate structured draws, and the faults
# of decoders are in bytes.
CORPUS = Path(__file__).with_name("corpus")
INPUT_BYTES_MAX = 64 << 10
SECONDS_MAX = 0.25
"""Processor time of one input, however long it is; 64 KiB of traffic is a large read. The most today are 26 ms (MQTT),
41 ms (WebSocket) and 64 ms (frames of a link); input that multiplies work takes seconds."""
ATTEMPTS = 3
"""Times that an input which took too long is tried: the collector, or a neighbour, may have taken the time."""
MEMORY_FLOOR_BYTES = 512 << 10
"""Memory that the shortest input may cost."""


@dataclass(frozen=True)
class Target:
    """A decoder under fuzzing."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    """Function that returns valid inputs, and invalid ones that the vectors have."""
    head: int = 0
    """Bytes at the beginning that choose how the rest is fed."""
    memory_per_byte: int = 16
    """Memory that each byte of an input may cost while it is decoded."""
    weight: Callable[[bytes], int] = len
    """Function that returns the bytes by which an input is measured: of a compressed one, those that it stands for."""
    longest: int = INPUT_BYTES_MAX
    """Length to which inputs are repeated."""
    is_slow: bool = False
    """True if its whole corpus takes seconds."""


def corpus(name: str) -> list[bytes]:
    """Inputs of a target that are kept: written from its seeds, and found by coverage since."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def check(target: Target, data: bytes) -> None:
    """Feed an input to a target, and measure its time.

    Raises:
        AssertionError, or anything that is no documented error: a fault.
    """
    allowed = SECONDS_MAX * max(1, target.weight(data) / INPUT_BYTES_MAX)
    for attempt in range(ATTEMPTS):
        before = time.thread_time()
        target.run(data)
        seconds = time.thread_time() - before
        if seconds < allowed:
            return
        if not attempt:
            gc.collect()
            allowed *= slowness()  # a machine beside whose work this one is measured
    raise AssertionError(f"{seconds * 1e3:.0f} ms for {len(data)} bytes; at most {allowed * 1e3:.0f}")


def check_memory(target: Target, data: bytes) -> None:
    """Feed an input to a target inside ``tracing``, and measure its memory.

    Raises:
        AssertionError: it took more than the input's size allows.
    """
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    target.run(data)
    cost = tracemalloc.get_traced_memory()[1] - before
    allowed = MEMORY_FLOOR_BYTES + target.memory_per_byte * target.weight(data)
    assert cost <= allowed, f"{cost} bytes of memory for {len(data)} bytes; at most {allowed}"


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Count what Python allocates."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def multiplied(target: Target, data: bytes) -> bytes:
    """An input repeated until it has the longest length: what costs the square of it shows."""
    head, body = data[: target.head], data[target.head :]
    return (head + body * (target.longest // max(1, len(body)) + 1))[: max(target.longest, len(data))]


# --- What decoders make of messages must be something that the log takes: it would refuse others' messages with it


NOW = 1_700_000_000_000_000_000
CLOCK = ClockReading(0, 0, ClockState.SYNCED)


def check_storable(found: Sequence[tuple[bytes, bytes, HeaderPairs]]) -> None:
    """Encode records as one batch, and read them again."""
    if not found:
        return
    keys, payloads, headers = zip(*found, strict=True)
    times = struct.pack(f"<{len(found)}q", *[NOW] * len(found))
    pairs = {index: each for index, each in enumerate(headers) if each}
    assert all(len(each) <= HEADER_PAIRS_MAX for each in headers)
    again = records(encode(1, 1, columns_from_lists(times, keys, payloads, pairs), CLOCK))
    for (key, payload, own), record in zip(found, again, strict=True):
        assert (record.key, record.payload) == (key, payload)
        assert repr(record.headers) == repr(tuple(own))
