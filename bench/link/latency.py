"""Latency from a device's publish to the hub's disk: real nodes and a real hub, with default settings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from bench.link import devices
from bench.link.watch import watching
from examples.demo.fabric import free_port
from tests.support.s3_servers import BUCKET, VERSITYGW, S3Server, built
from weft.protocols.batch import records
from weft.protocols.chunk import section_entries
from weft.protocols.errors import Corrupt
from weft.storage import hub_keys
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

EDGES, RATE = 50, 20.0
"""Number of edges, and messages a second of each."""
NODES_OF_PROCESS = 10
WARMUP_S = 3.0
END_S = 60.0
CHUNKS_MAX = 10_000_000
HUB = "listen: 127.0.0.1:{port}\nstore: {store}\n{settings}"


class Place(NamedTuple):
    """Place of a hub's store."""

    url: str
    options: dict[str, str]
    """Options of the store, which are also environment variables."""
    folder: Path
    """Folder in which its objects are files."""


@contextlib.contextmanager
def store_in(folder: Path, kind: str) -> Iterator[Place]:
    """Make a store: ``folder``, or ``s3`` for a bucket of a real server, which keeps objects as files too.

    Raises:
        LookupError: the server is not installed and cannot be built here.
    """
    with contextlib.ExitStack() as stack:
        if kind == "s3":
            server = stack.enter_context(S3Server(VERSITYGW, built(VERSITYGW), folder / "server"))
            yield Place(server.uri, server.options(), folder / "server" / BUCKET)
        else:
            (folder / "store").mkdir()
            yield Place(str(folder / "store"), {}, folder / "store")


class Trip(NamedTuple):
    """Moments of one record, in nanoseconds since 1970, by the one clock of this machine."""

    sent: int
    taken: int
    """Time at which the edge took it from the device."""
    received: int
    """Time at which the hub took it from the link."""
    drafted: int
    """Time at which the hub began to write its chunk."""
    written: int
    """Time at which the chunk, whose bytes are synced, had its name. The folder's sync follows, then the answers."""


def payload() -> bytes:
    """Return a reading of 120 bytes with the moment at which it is sent."""
    text = b'{"sent":%d,"temp":%.2f,"humidity":%.2f,"state":"running"' % (
        time.time_ns(),
        random.uniform(18, 26),
        random.uniform(30, 60),
    )
    return text + b',"note":"' + b"x" * (120 - len(text) - 11) + b'"}'


@contextlib.contextmanager
def _processes() -> Iterator[list[subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def _start(
    command: Sequence[str], stdin: int | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    command, variables = [sys.executable, "-m", *command], {**os.environ, **(environment or {})}
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, env=variables)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise SystemExit(f"{process.args!r} did not start; run it by hand to see why")
    return line


async def _publish(ports: Sequence[int], seconds: float) -> list[int]:
    fleet = await devices.connected(ports, payload)
    await devices.publish(fleet, RATE, WARMUP_S + seconds, random.Random(1))
    acked = [took for device in fleet for took in device.acked_ns]
    for device in fleet:
        device.close()
    return acked


async def trips(store: str, written: Mapping[str, int], options: dict[str, str] | None = None) -> list[Trip]:
    """Return the trips of all records in a store; ``written`` are the moments of its chunks by their keys."""
    objects = open_store(store, options)
    cluster = await open_cluster(objects, None)
    found: list[Trip] = []
    for shard in range(cluster.tree.count):
        log = ShardLog(objects, cluster, shard)
        for n in range(CHUNKS_MAX):
            read = await log.whole(n)
            if read is None:
                break
            chunk, data = read
            for section in chunk.footer.streams:
                body = data[section.position : section.position + section.length]
                lanes = chunk.footer.lanes_of(section)
                for entry in section_entries(section, body, lanes):
                    found += (
                        Trip(
                            msgspec.json.decode(each.payload)["sent"],
                            each.time,
                            entry.received,
                            chunk.header.created,
                            written.get(hub_keys.chunk_key(shard, n), 0),
                        )
                        for each in records(entry.batch, 0, entry.skip, entry.skip + entry.take)
                    )
    return found


def quantiles(values: Sequence[int]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    ordered = sorted(values)
    if not ordered:
        raise Corrupt("the store holds no records")
    return {name: round(ordered[int(len(ordered) * share)] / 1e6, 1) for name, share in (("p50", 0.5), ("p99", 0.99))}


def _stages(found: Sequence[Trip]) -> dict[str, dict[str, float]]:
    return {
        "device_to_edge": quantiles([each.taken - each.sent for each in found]),
        "edge_to_hub": quantiles([each.received - each.taken for each in found]),
        "wait_at_hub": quantiles([each.drafted - each.received for each in found]),
        "write": quantiles([each.written - each.drafted for each in found]),
    }


def _run(
    folder: Path, place: Place, seconds: float, edges: int, settings: str
) -> tuple[list[int], float, dict[str, int]]:
    port = free_port()
    config = folder / "hub.yaml"
    config.write_text(HUB.format(port=port, store=place.url, settings=settings))
    with _processes() as running, watching(place.folder, "shard-*/chunk") as written:
        hub = _start(["weft", "hub", "run", str(config), "--log-level", "error"], None, place.options)
        running.append(hub)
        if "ready" not in _line(hub):
            raise SystemExit("the hub did not start")
        ports: list[int] = []
        for first in range(0, edges, NODES_OF_PROCESS):
            count = str(min(NODES_OF_PROCESS, edges - first))
            command = ["bench.link.nodes", str(folder), str(first), count, f"http://127.0.0.1:{port}"]
            running.append(_start(command, subprocess.PIPE))
            ports += msgspec.json.decode(_line(running[-1]))
        cpu = _cpu_s(hub.pid)
        acked = asyncio.run(_publish(ports, seconds))
        cpu = _cpu_s(hub.pid) - cpu
        for nodes in running[1:]:
            nodes.communicate(timeout=END_S)
        hub.terminate()
        hub.wait(END_S)
    return acked, cpu, written


def _cpu_s(pid: int) -> float:
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in family)


def measure(
    folder: Path, seconds: float, edges: int = EDGES, settings: str = "", *, kind: str = "folder"
) -> dict[str, Any]:
    """Run the fleet, and read from the store when each record became durable.

    Args:
        settings: further lines of the hub's configuration.
        kind: of the store, ``folder`` or ``s3``.
    """
    with store_in(folder, kind) as place:
        acked, cpu, written = _run(folder, place, seconds, edges, settings)
        found = asyncio.run(trips(place.url, written, place.options))
    expected = int(RATE * (WARMUP_S + seconds)) * edges
    if len(found) != expected:
        raise SystemExit(f"{expected} messages were acknowledged, the store holds {len(found)}")
    begin = min(each.sent for each in found) + int(WARMUP_S * 1e9)
    measured = [each for each in found if each.sent >= begin]
    if not all(each.written for each in measured):
        raise SystemExit("the kernel did not tell of all chunks: their folder appeared too late, or events were lost")
    chunks = sum(1 for _ in place.folder.glob("shard-*/chunk/*"))
    return {
        "store": kind,
        "edges": edges,
        "messages_per_s": round(edges * RATE),
        "durable_ms": quantiles([each.written - each.sent for each in measured]),
        "stages_ms": _stages(measured),
        "device_ack_ms": quantiles(acked),
        "hub_cores": round(cpu / (WARMUP_S + seconds), 2),
        "chunks_per_s": round(chunks / (WARMUP_S + seconds), 1),
    }
