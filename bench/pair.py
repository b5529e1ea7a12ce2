"""Costs of a pair: messages a second and the time of an acknowledgement, with one disk and with two, in turns.

    python -m bench.pair [--seconds 5] [--turns 3]

A node alone, one with its peer on loopback, and one whose peer is behind a line of 1 ms (a relay that delays bytes,
1 ms each way) run beside each other, and one of them has load at a time. They have ``acks: both`` where they have a
peer, and a link whose hub is away, so that the peer gets everything. The generator (``mqttload.c``) publishes readings
of real sensors at QoS 1. Both nodes of a pair and the relay share this machine, so a pair has half of the processors
that two machines give it. The ratio of each turn is within one run; the median of them is the result.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from bench import payloads
from bench.brokers import STREAM, metric, server
from bench.common import write_results
from bench.generator import Generator, build
from examples.demo.fabric import free_port

EDGE_YAML = """\
node: {name}
data_dir: {directory}/data
http: {{bind: "127.0.0.1:{http}"}}
listeners:
  mqtt: {{bind: "127.0.0.1:{port}"}}
disk: {{budget: 8GiB}}
streams:
  load: {{from: "{stream}"}}
links:
  hub: {{to: "http://127.0.0.1:{hub}"}}
"""
PAIR_YAML = """\
pair: {{listen: "127.0.0.1:{own}", peer: "http://127.0.0.1:{peer}", acks: both, alone_after: 1h, take_over_after: null}}
"""
LOADS: dict[str, dict[str, Any]] = {
    "1000x1": {"c": 1000, "w": 1},
    "10x100": {"c": 10, "w": 100},
    "1000/s": {"c": 10, "r": 1000, "W": 0},
}
"""Loads as fast as acknowledgements come, and one at a fixed rate, where the time of one is not that of a queue."""
LINE_S = 0.001
"""Time of a byte's way over the line."""
IDLE_S = 10.0
FSYNCS = 200
RATE_RATIO_MIN = 0.6


class Line:
    """A relay to a port on loopback, which delivers bytes so much later."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._port, self._delay_s = port, delay_s
        self._loop = asyncio.new_event_loop()
        listening = asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._loop.run_until_complete(listening).sockets[0].getsockname()[1]
        threading.Thread(target=self._loop.run_forever, name="line", daemon=True).start()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            # A timer each: bytes that are under way do not keep others from the line, and stay in order.
            self._loop.call_later(self._delay_s, writer.write, data)
        self._loop.call_later(self._delay_s, writer.close)


@dataclass(frozen=True)
class Site:
    """A node that takes the load, and its peer if it has one."""

    port: int
    http: int
    processes: tuple[int, ...]
    """The node's process id, and the peer's."""

    def copied_bytes(self) -> int:
        """Return the bytes that the node has sent to its peer."""
        return metric(self.http, "weft_edge_pair_copied_bytes_total") if len(self.processes) > 1 else 0

    def cpu_seconds(self) -> float:
        """Return the processor time of both nodes."""
        return sum(sum(psutil.Process(process).cpu_times()[:2]) for process in self.processes)


def begin(stack: ExitStack, folder: Path, names: tuple[str, ...], delay_s: float = 0.0) -> Site:
    """Start a node, and its peer if there are two names, and wait until they are a pair."""
    listening = [free_port() for _ in names]
    ways = [Line(port, delay_s).port if delay_s else port for port in listening]
    processes, https, ports = list[int](), list[int](), list[int]()
    for at, name in enumerate(names):
        directory, port, http = folder / name, free_port(), free_port()
        directory.mkdir(parents=True)
        text = EDGE_YAML.format(name=name, directory=directory, http=http, port=port, stream=STREAM, hub=free_port())
        if len(names) > 1:
            text += PAIR_YAML.format(own=listening[at], peer=ways[1 - at])
        (directory / "edge.yaml").write_text(text)
        command = [sys.executable, "-m", "weft", "edge", "run", str(directory / "edge.yaml")]
        processes.append(stack.enter_context(server(command, port, http)))
        https.append(http)
        ports.append(port)
    while len(names) > 1 and not all(metric(http, "weft_edge_pair_connected") for http in https):
        time.sleep(0.1)
    return Site(ports[0], https[0], tuple(processes))


def measure(site: Site, generator: Generator, load: dict[str, Any], seconds: float) -> dict[str, float]:
    """Return the figures of one load on one node."""
    before, cpu = site.copied_bytes(), site.cpu_seconds()
    found = generator.run(site.port, None, seconds, load)
    return {
        "messages_per_s": found["messages_per_s"],
        "ack_ms_p50": found["ack_ms"]["p50"],
        "ack_ms_p99": found["ack_ms"]["p99"],
        "cpu_us": (site.cpu_seconds() - cpu) / found["acked"] * 1e6,
        "copied_bytes_per_message": (site.copied_bytes() - before) / found["acked"],
    }


def fsync_ms(folder: Path) -> float:
    """Return the median time of an fsync of a page, in milliseconds."""
    times = []
    with open(folder / "fsync", "wb", buffering=0) as file:
        for _ in range(FSYNCS):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def idle_share(site: Site) -> float:
    """Return the share of a core that both nodes of a pair take without load."""
    before = site.cpu_seconds()
    time.sleep(IDLE_S)
    return (site.cpu_seconds() - before) / IDLE_S


def summary(turns: list[dict[str, Any]], fsync: float) -> list[dict[str, Any]]:
    """Return the medians of each load and kind, and whether targets are met."""
    rows = []
    for load, options in LOADS.items():
        alone = turns[0]["alone"][load].keys()
        median = {
            kind: {name: statistics.median(turn[kind][load][name] for turn in turns) for name in alone}
            for kind in turns[0]
        }
        for kind, figures in median.items():
            ratio = statistics.median(
                turn[kind][load]["messages_per_s"] / turn["alone"][load]["messages_per_s"] for turn in turns
            )
            later_ms = figures["ack_ms_p50"] - median["alone"]["ack_ms_p50"]
            trip_ms = 2e3 * LINE_S if kind == "line" else 0.0
            is_met = later_ms <= trip_ms + fsync if "r" in options else ratio >= RATE_RATIO_MIN
            rows.append({"load": load, "kind": kind, **figures, "rate_ratio": ratio, "later_ms": later_ms})
            if kind != "alone":
                rows[-1]["met"] = is_met
    return rows


def main() -> None:
    """Run the turns and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load on each node in each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--no-results", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    turns: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        generator = build(folder)
        payloads.write(folder / "sensor", payloads.sensor())
        generator = replace(generator, payloads=folder / "sensor")
        sites = {
            "alone": begin(stack, folder / "alone", ("solo",)),
            "loopback": begin(stack, folder / "loopback", ("near-a", "near-b")),
            "line": begin(stack, folder / "line", ("far-a", "far-b"), LINE_S),
        }
        idle = idle_share(sites["loopback"])
        for site in sites.values():  # the first messages find nothing in any cache
            measure(site, generator, LOADS["10x100"], 1.0)
        for turn in range(arguments.turns):
            order = list(sites) if turn % 2 == 0 else list(sites)[::-1]
            turns.append(
                {
                    kind: {
                        load: measure(sites[kind], generator, options, arguments.seconds)
                        for load, options in LOADS.items()
                    }
                    for kind in order
                }
            )
        fsync = fsync_ms(folder)
    rows = summary(turns, fsync)
    for row in rows:
        print(
            f"{row['load']:>7} {row['kind']:>9}: {row['messages_per_s']:9,.0f} msg/s ({row['rate_ratio']:.2f}), "
            f"p50 {row['ack_ms_p50']:7.2f} ms ({row['later_ms']:+.2f}), {row['cpu_us']:6.1f} us, "
            f"{row['copied_bytes_per_message']:5.1f} B to the peer  {'' if row.get('met', True) else 'NOT MET'}"
        )
    print(f"fsync {fsync:.2f} ms; an idle pair takes {idle:.2%} of a core")
    if not arguments.no_results:
        figures = {"line_ms": LINE_S * 1e3, "fsync_ms": fsync, "idle_share": idle, "rows": rows, "turns": turns}
        write_results("pair", figures)


if __name__ == "__main__":
    main()
