"""Stacks of a running process, sampled by py-spy: processor time by part, and a flame graph.

    python -m bench.profiling PID --out FILE.svg [--seconds 10] [--title TEXT]

draws a flame graph of any process, such as the node or hub of a benchmark that runs meanwhile. It has the calls of
Python and of the C library, so that the kernel's part shows.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import NamedTuple

from bench.common import LOAD_CORE, pinned

RATE = 200
"""Stacks that the profiler takes a second."""


def start_sampling(pid: int, seconds: float, path: Path, *, native: bool = False) -> subprocess.Popen[bytes]:
    """Start py-spy, which shares the generator's core.

    Args:
        path: file for a line of each stack and its number.
        native: whether stacks have the frames of C, too; the process stands still while one is taken.
    """
    command = [
        str(Path(sys.executable).with_name("py-spy")),
        "record",
        "--pid",
        str(pid),
        "--format",
        "raw",
        "--threads",
        "--duration",
        str(round(seconds)),
        "--rate",
        str(RATE),
        "--output",
        str(path),
        "--native" if native else "--nonblocking",
    ]
    return subprocess.Popen(pinned(LOAD_CORE, command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# Processor time by part. A stack is also taken of a thread that waits for the disk. So the samples only part the time
# of each thread, which the kernel counts; and stacks in calls of the file system part the time that the thread spent
# in the kernel, all others the rest.

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
    ("log: read", ("segment_log/reader", "segment_log/scan", "segment_log/segment_bytes")),
    ("log: commit and sync", ("segment_log/commit", "segment_log/segment_file", "storage/filesystem")),
    ("log: append", ("segment_log/",)),
    ("batches", ("protocols/batch", "protocols/columns")),
    ("MQTT: decode", ("protocols/mqtt/",)),
    ("MQTT: receive and acknowledge", ("edge_node/servers/", "edge_node/sessions/")),
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


# Flame graph: each rectangle is a call, as wide as the samples in which it was running, above those that it made.

WAITS = ("Condition.wait", "epoll_pwait", "_worker (concurrent/futures", "pthread_cond_timedwait")
"""Pieces of frames of threads that wait; the last is how a thread waits for the interpreter's lock."""
FIRST = ("run_until_stopped", "WriterThread._run")
"""Calls that a graph begins with; those that lead there are the same in each stack."""
LIBRARY = " (libc.so.6)"
"""End of a frame of the C library: nearly all of its time is the kernel's."""
WIDTH, ROW, LETTER = 1200, 18, 6.7
"""Pixels of the graph, of a row, and of a letter."""
LEAST = 0.002
"""Share of the samples below which a call is left out."""


class Call:
    """A call in a flame graph, and what it called."""

    def __init__(self) -> None:
        self.samples = 0
        self.calls: dict[str, Call] = {}

    def add(self, frames: Iterable[str], samples: int) -> None:
        """Count a stack, the outermost frame first."""
        call = self
        call.samples += samples
        for frame in frames:
            call = call.calls.setdefault(frame, Call())
            call.samples += samples


def frames_of(stack: str) -> list[str] | None:
    """Return the calls of Python and of the C library in a stack, without lines of the source; None for a thread that
    waits."""
    thread, *frames = stack.split(";")
    if any(wait in frame for frame in frames for wait in WAITS):
        return None
    first = next((at for at, frame in enumerate(frames) if frame.startswith(FIRST)), 0)
    shown = [
        frame for frame in frames[first:] if ".py" in frame or (frame.endswith(LIBRARY) and not frame.startswith("0x"))
    ]
    names = [re.sub(r":\d+\)$", ")", frame.replace("(weft/", "(").removesuffix(LIBRARY)) for frame in shown]
    return [thread.partition(": ")[2] or "thread", *names]


def flame_graph(lines: Iterable[str], title: str) -> str:
    """Return the picture of sampled stacks.

    Args:
        lines: stack and number of each, as py-spy writes them.
    """
    root = Call()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = frames_of(stack)
        if frames is not None:
            root.add(frames, int(count))
    rows = list(_rectangles(root, title, 0.0, 0))
    height = ROW * (2 + max(depth for _, _, depth, _ in rows))
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-size="11" '
        'font-family="monospace">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for name, x, depth, share in rows:
        left, width, top = x * WIDTH, share * WIDTH, ROW * depth + 4
        text = escape(name[: max(int((width - 4) / LETTER), 0)]) if width > 5 * LETTER else ""
        drawn.append(
            f"<g><title>{escape(name)}: {share:.1%}</title>"
            f'<rect x="{left:.1f}" y="{top}" width="{max(width - 1, 0.5):.1f}" height="{ROW - 1}" '
            f'fill="{_color(name)}"/><text x="{left + 3:.1f}" y="{top + 13}">{text}</text></g>'
        )
    return "\n".join([*drawn, "</svg>", ""])


def _rectangles(root: Call, name: str, x: float, depth: int, whole: int = 0) -> Iterator[tuple[str, float, int, float]]:
    """Yield name, left end, row and width of each call, as shares of all samples."""
    whole = whole or max(root.samples, 1)
    share = root.samples / whole
    if share < LEAST:
        return
    yield name, x, depth, share
    for inner, call in sorted(root.calls.items(), key=lambda item: -item[1].samples):
        yield from _rectangles(call, inner, x, depth + 1, whole)
        x += call.samples / whole


def _color(name: str) -> str:
    return "#f3c98b" if ".py" in name else "#c9d6e8"


def main() -> None:
    """Sample a process and draw its flame graph."""
    parser = argparse.ArgumentParser(prog="bench.profiling", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pid", type=int, help="process that is sampled")
    parser.add_argument("--out", type=Path, required=True, help="file for the picture")
    parser.add_argument("--seconds", type=float, default=10.0, help="time of sampling")
    parser.add_argument("--title", default="all", help="name of the lowest row")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        stacks = Path(folder) / "stacks"
        if start_sampling(arguments.pid, arguments.seconds, stacks, native=True).wait() or not stacks.exists():
            sys.exit("bench.profiling: py-spy failed; it needs the right to trace the process (pip install py-spy)")
        arguments.out.write_text(flame_graph(stacks.read_text().splitlines(), arguments.title))


if __name__ == "__main__":
    main()
