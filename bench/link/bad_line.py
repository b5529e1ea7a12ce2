"""New messages beside history on a bad line: a real edge node and a real hub, with the kernel's TCP between them.

With ``--region`` the line is between two regions: the edge's hub is on its side, and relays to one beyond the line.

``python -m bench.link.bad_line --folder FOLDER`` runs one case and prints its figures as JSON. It needs namespaces of
its own, as ``measure`` makes them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.link import devices
from bench.link.latency import Trip, quantiles, trips
from bench.link.line import FAR, Line, add_options, quality_of
from bench.link.watch import watching
from examples.demo.fabric import free_port

ROOM = ("unshare", "--user", "--map-root-user", "--net", "--kill-child")
"""Command that starts another with namespaces of its own, in which an ordinary user may make devices."""
LIVE_RATE = 10.0
"""New messages a second."""
STORED_BYTES = 75
"""Bytes of a reading of the history, about: of so many it takes to fill the line."""
FLEET, FLEET_S = 20, 5.0
"""Devices that make the history, and the time in which they do."""
CALM_S = 45.0
"""Time around a fault whose messages are not counted among those of a line that works: a link tries again after 30 s at
most, and what came before its connection is history."""
START_S, DRAIN_S, END_S = 60.0, 900.0, 30.0
HUB = """\
listen: {address}
store: {store}
anonymous: allowed_beyond_loopback
plain_http: allowed_beyond_loopback
"""
EDGE = """\
node: edge
data_dir: {folder}/edge
listeners: {{mqtt: {{bind: 127.0.0.1:{port}}}}}
http: null
streams: {{telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry"}}}}
links: {{cloud: {{to: "http://{hub}", order: {order}, hold_at_start: 0s}}}}
"""
REGIONS = "regions: {{beyond: {{to: ['http://{beyond}']}}}}\n"


def reading() -> bytes:
    """Return a reading of some 160 bytes, of which compression leaves about a half."""
    return b'{"sent":%d,"temp":%.2f,"humidity":%.2f,"state":"running","note":"%s"}' % (
        time.time_ns(),
        random.uniform(18, 26),
        random.uniform(30, 60),
        secrets.token_hex(40).encode(),
    )


@contextlib.contextmanager
def _started(command: Sequence[str]) -> Iterator[None]:
    """Run a program of Weft; it is ready when the block begins."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if "ready" not in process.stdout.readline():
            raise SystemExit(f"{' '.join(command)} did not start; run it by hand to see why")
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _until(is_so: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} within {seconds:g} s")
        await asyncio.sleep(0.1)


class Case:
    """One run: an order of a link on one line, and perhaps a direction that is dead for a while.

    Args:
        given: the command's options.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self._given, self._folder = given, given.folder
        self._quality = quality_of(given)
        carried = self._quality.bytes_per_s * given.seconds
        self._history = int(carried * given.history / STORED_BYTES) // FLEET * FLEET
        self._store, self._port = self._folder / "store", free_port()
        self._on = self._begin = self._end = 0
        """Times at which the line works, and at which new messages begin and end, ns since 1970."""
        self._hurt = (0, 0)
        """Times between which the line did not work."""

    def run(self) -> dict[str, Any]:
        """Return the figures."""
        weft, beyond = [sys.executable, "-m", "weft"], f"{FAR}:{free_port()}"
        hub = f"127.0.0.1:{free_port()}" if self._given.region else beyond
        near, far, west = self._folder / "edge.yaml", self._folder / "hub.yaml", self._folder / "west.yaml"
        self._store.mkdir(parents=True)
        far.write_text(HUB.format(address=beyond, store=self._store))
        west.write_text(HUB.format(address=hub, store=self._folder / "west") + REGIONS.format(beyond=beyond))
        near.write_text(EDGE.format(folder=self._folder, port=self._port, hub=hub, order=self._given.order))
        with contextlib.ExitStack() as stack:
            line = stack.enter_context(contextlib.closing(Line(self._quality, self._given.seed)))
            written = stack.enter_context(watching(self._store, "shard-*/chunk"))
            stack.enter_context(_started([*line.inside, *weft, "hub", "run", str(far), "--log-level", "error"]))
            if self._given.region:
                stack.enter_context(_started([*weft, "hub", "run", str(west), "--log-level", "error"]))
            stack.enter_context(_started([*weft, "edge", "run", str(near), "--log-level", "error"]))
            found = asyncio.run(self._measure(line, written))
        return self._figures(found)

    async def _measure(self, line: Line, written: Mapping[str, int]) -> list[Trip]:
        line.order("both", is_on=False)
        fleet = await devices.connected([self._port] * FLEET, reading, "history")
        await devices.publish(fleet, self._history / FLEET / FLEET_S, FLEET_S, random.Random(1))
        for device in fleet:
            device.close()
        line.order("both", is_on=True)
        self._on = time.time_ns()
        await _until(lambda: bool(written), START_S, "the hub did not get the first records")
        (live,) = await devices.connected([self._port], reading, "live")
        self._begin = time.time_ns()
        hurting = asyncio.create_task(self._hurt_line(line))
        await devices.publish([live], LIVE_RATE, self._given.seconds, random.Random(1))
        self._end = time.time_ns()
        await hurting
        live.close()
        return await self._drained(written)

    async def _hurt_line(self, line: Line) -> None:
        if not self._given.dead:
            return
        await asyncio.sleep(self._given.seconds / 3)
        line.order(self._given.dead, is_on=False)
        begin = time.time_ns()
        await asyncio.sleep(self._given.dead_seconds)
        line.order(self._given.dead, is_on=True)
        self._hurt = begin, time.time_ns()

    async def _drained(self, written: Mapping[str, int]) -> list[Trip]:
        expected, deadline = self._history + int(LIVE_RATE * self._given.seconds), time.monotonic() + DRAIN_S
        while len(found := await trips(str(self._store), written)) < expected:
            if time.monotonic() > deadline:
                raise SystemExit(f"{expected} messages were acknowledged, the hub has {len(found)} of them")
            await asyncio.sleep(2.0)
        return found

    def _figures(self, found: Sequence[Trip]) -> dict[str, Any]:
        old = [each for each in found if each.sent < self._begin]
        new = [each for each in found if each.sent >= self._begin]
        begin, end = self._hurt
        calm = [each for each in new if not begin - CALM_S * 1e9 < each.sent < end + CALM_S * 1e9]
        late = [each.written - each.sent for each in calm or new]
        last = max(each.written for each in old)
        carried = sum(file.stat().st_size for file in self._store.glob("shard-*/chunk/*")) * len(old) / len(found)
        return {
            "order": self._given.order,
            "live_ms": {**quantiles(late), "max": round(max(late) / 1e6, 1)},
            "live": len(new),
            "live_s": round((self._end - self._begin) / 1e9, 1),
            "history": len(old),
            "history_s": round((last - self._begin) / 1e9, 1),
            "line_used": round(carried / self._quality.bytes_per_s / (last - self._on) * 1e9, 2),
            "doubled": len(found) - len({each.sent for each in found}),
        }


def measure(folder: Path, orders: Sequence[str], *options: str) -> list[dict[str, Any]]:
    """Return the figures of each order, which runs in namespaces of its own.

    Args:
        options: of ``python -m bench.link.bad_line``.

    Raises:
        SystemExit: this machine lets its user make no line, or a run failed.
    """
    found = []
    for order in orders:
        command = [*ROOM, sys.executable, "-m", "bench.link.bad_line", "--folder", str(folder / order)]
        done = subprocess.run([*command, "--order", order, *options], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"no figures of a bad line, {order}: exit status {done.returncode}")
        found.append(msgspec.json.decode(done.stdout))
    return found


def main() -> None:
    """Run the case that the command line says."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="bench.link.bad_line", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the log and the store are made")
    parser.add_argument("--order", default="fresh_first", choices=["fresh_first", "strict"])
    parser.add_argument("--region", action="store_true", help="the line is between two regions")
    parser.add_argument(
        "--history", type=float, default=1.2, help="times what the line carries in the time of the measure"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="time of new messages")
    parser.add_argument(
        "--dead", default="", choices=["", "up", "down", "both"], help="a direction that dies meanwhile"
    )
    parser.add_argument("--dead-seconds", type=float, default=60.0)
    add_options(parser)
    print(msgspec.json.encode(Case(parser.parse_args()).run()).decode())


if __name__ == "__main__":
    main()
