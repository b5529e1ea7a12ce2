"""Shared parts of the benchmarks: the machine's facts, pinning to a core, and where results go."""

from __future__ import annotations

import json
import os
import platform
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zstandard

from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState

RESULTS = Path(__file__).parent / "results"
SERVER_CORE, LOAD_CORE = 0, 1
PAYLOAD_BYTES = 100
"""Payload of a message, in every benchmark."""
_COMPRESSOR = zstandard.ZstdCompressor(level=1)


def encode_batch(
    base_seq: int, first_time: int, interval_ns: int, keys: Sequence[bytes], payloads: Sequence[bytes]
) -> bytes:
    """Encode a batch as an edge has it on disk, of records that came ``interval_ns`` apart."""
    count = len(payloads)
    times = struct.pack(f"<{count}q", *range(first_time, first_time + count * interval_ns, interval_ns))
    columns = batch.columns_from_lists(times, list(keys), list(payloads))
    return batch.encode(1, base_seq, columns, ClockReading(1, 1, ClockState.SYNCED), _COMPRESSOR)


def pin(core: int) -> None:
    """Keep this process, and what it starts from now on, on one core (when the machine has it)."""
    if core < (os.cpu_count() or 1):
        os.sched_setaffinity(0, {core})


def pinned(core: int, command: list[str]) -> list[str]:
    """Return the command on one core, when the machine has it."""
    return ["taskset", "-c", str(core), *command] if core < (os.cpu_count() or 1) else command


def machine() -> dict[str, Any]:
    """Return the facts that a reader needs to judge a figure; none of them names the machine."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def write_results(name: str, results: Any, folder: Path = RESULTS) -> Path:
    """Write ``results`` and the machine's facts to ``<folder>/<name>-<date>.json``; the path."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{time.strftime('%Y-%m-%d', time.gmtime())}.json"
    path.write_text(json.dumps({"machine": machine(), "results": results}, indent=2) + "\n")
    return path
