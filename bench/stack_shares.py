"""Processor time of a node by part, from stacks that py-spy sampled (``--format raw --threads``).

A stack is also taken of a thread that waits for the disk. So the samples only part the time of each thread, which the
kernel counts; and stacks in calls of the file system part the time that the thread spent in the kernel, all others the
rest.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PARTS = (
    ("functions: where and set", ("functions/expression", "functions/select", "functions/routing")),
    ("functions: payloads", ("functions/formats", "functions/cbor_format", "functions/sparkplug_payloads")),
    ("functions: windows", ("functions/window", "functions/aggregates")),
    ("functions: read the log", ("edge_node/derived/stream",)),
    ("functions: write the step", ("edge_node/derived/steps",)),
    ("functions: kinds", ("functions/fields", "functions/thinning", "functions/series", "functions/enrich")),
    ("functions: other languages", ("functions/python", "functions/sparkplug", "functions/sql")),
    ("functions: chain", ("functions/chain",)),
    ("functions: the rest", ("weft/functions/", "edge_node/derived/")),
    ("log: read", ("segment_log/reader", "segment_log/scan")),
    ("log: commit and sync", ("segment_log/commit", "segment_log/segment_file", "storage/filesystem")),
    ("log: append", ("segment_log/",)),
    ("batches", ("protocols/batch", "protocols/columns")),
    ("MQTT: decode", ("protocols/mqtt/",)),
    (
        "MQTT: receive and acknowledge",
        ("edge_node/servers/", "edge_node/sessions/"),
    ),
    ("ingest", ("edge_node/ingest/", "edge_node/subscriptions/")),
    ("event loop and sockets", ("service/serving",)),
    ("turns", ("bounds/scheduling",)),
    ("node: the rest", ("edge_node/", "weft/")),
)
"""Parts, and pieces of the paths of their modules. The innermost frame that belongs to a part counts for it, whichever
comes first here."""
OTHER = "interpreter"
IN_KERNEL = "storage/filesystem"
"""Innermost frame of a thread that waits for the file system: its samples say nothing of the processor."""
_THREAD = re.compile(r"thread \((\d+)\)")


def part_of(stack: str) -> str:
    """Return the part that a stack was sampled in.

    Functions call log and batches, and so do links: what happens on behalf of functions counts for log and batches.
    """
    for frame in reversed(stack.split(";")):
        for part, places in PARTS:
            if any(place in frame for place in places):
                return part
    return OTHER


class Spent(NamedTuple):
    """Processor time of a thread, s."""

    user: float
    system: float

    def since(self, before: Spent) -> Spent:
        """Return what was spent since then."""
        return Spent(self.user - before.user, self.system - before.system)


NOTHING = Spent(0.0, 0.0)


def thread_seconds(pid: int) -> dict[int, Spent]:
    """Return thread id -> processor time so far."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        found[int(task.name)] = Spent(int(fields[11]) / ticks, int(fields[12]) / ticks)
    return found


def seconds_by_part(path: Path, threads: Mapping[int, Spent]) -> dict[str, float]:
    """Return part -> processor time, the largest first.

    Args:
        threads: processor time of each thread; what was sampled of no other counts.
    """
    waiting: dict[int, Counter[str]] = defaultdict(Counter)
    others: dict[int, Counter[str]] = defaultdict(Counter)
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        thread = _THREAD.match(stack)
        if thread is not None:
            counts = waiting if IN_KERNEL in stack.rpartition(";")[2] else others
            counts[int(thread[1])][part_of(stack)] += int(count)
    seconds: dict[str, float] = defaultdict(float)
    for thread_id, spent in threads.items():
        # Of a thread that never waits for the file system, the time in the kernel is that of sockets and of memory.
        parts = [(spent.user, others[thread_id]), (spent.system, waiting[thread_id])]
        if not all(samples for _, samples in parts):
            parts = [(spent.user + spent.system, others[thread_id] or waiting[thread_id] or Counter({OTHER: 1}))]
        for used, samples in parts:
            for part, taken in samples.items():
                seconds[part] += used * taken / samples.total()
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))
