"""Time to open a large log, after a clean stop and after a kill; part of ``bench.durability``."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.common import PAYLOAD_BYTES
from weft.edge_node.timing import clock_reader, wall_clock
from weft.storage.segment_log import LogSettings, SegmentLog

RECORDS_AT_ONCE = 5_000
RUNS_PER_COMMIT = 8
STREAMS = 8


def open_log(directory: str, size: int) -> SegmentLog:
    """Open a log with the default segments and a budget that holds it."""
    return SegmentLog.open(
        directory,
        LogSettings(budget_bytes=2 * size + (1 << 30)),
        wall_clock=wall_clock,
        clock_reading=clock_reader(),
        random_bits=random.getrandbits,
        post=lambda deliver: deliver(),
        start_writer=False,
    )


def fill(directory: str, size: int) -> None:
    """Write ``size`` bytes of random 100-byte payloads on several streams, and die without closing."""
    log = open_log(directory, size)
    streams = [log.stream(f"stream-{number}") for number in range(STREAMS)]
    blob = random.randbytes(RECORDS_AT_ONCE * PAYLOAD_BYTES)
    payloads = [blob[at : at + PAYLOAD_BYTES] for at in range(0, len(blob), PAYLOAD_BYTES)]
    keys = [b"plant/1/press/%d" % (number % 50) for number in range(RECORDS_AT_ONCE)]
    while log.stats().bytes_on_disk < size:
        for number in range(RUNS_PER_COMMIT):
            log.append(streams[number % STREAMS], wall_clock(), keys, payloads)
        while log.committer.run_once():
            pass
    os._exit(0)


def time_opening(directory: str, size: int, result: Connection) -> None:
    """Open, say how long it took, close cleanly."""
    started = time.perf_counter()
    log = open_log(directory, size)
    result.send((time.perf_counter() - started, log.stats().bytes_on_disk, log.stats().segments))
    log.close()


def opened(directory: str, size: int) -> dict[str, Any]:
    """Measure one opening in a fresh process, with nothing of the log in memory if the machine lets us drop it."""
    subprocess.run(["sync"], check=True)
    cold = True
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        cold = False
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=time_opening, args=(directory, size, theirs))
    process.start()
    seconds, found, segments = ours.recv()
    process.join()
    return {"seconds": round(seconds, 3), "bytes": found, "segments": segments, "cold": cold}


def measure_opening(size: int, directory: Path | None) -> dict[str, Any]:
    """Fill a log, kill its process, and open it twice: the second time after a clean stop."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-", dir=directory) as name:
        process = multiprocessing.get_context("spawn").Process(target=fill, args=(name, size))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit("the log could not be filled, perhaps for lack of room. --open-gib 0 leaves this out")
        return {"after_kill": opened(name, size), "after_stop": opened(name, size)}
