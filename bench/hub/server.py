"""The hub's processes: a real `weft hub run`, pinned to its cores."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import psutil

from bench.common import pin
from examples.demo.fabric import free_port
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

CONFIG = """\
listen: 127.0.0.1:{port}
store: {folder}/store
shards: {shards}
processes: {processes}
tables: null
limits: {{links: 20000}}
{more}"""
SHARDS = 4
DIVIDED_S_MAX = 180.0
"""Within which hosts that started own their shards: they are believed after some 35 s."""


@dataclass
class Server:
    """A running hub."""

    urls: list[str]
    processes: list[psutil.Process]
    folder: Path

    def cpu_s(self) -> float:
        """Return the processor time of all its processes."""
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)

    def memory_bytes(self) -> int:
        """Return the memory of its largest process."""
        return max(int(process.memory_info().rss) for process in self.processes)


def room_for_links() -> None:
    """Raise the bound on open files, for this process and those it starts."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextlib.contextmanager
def running(
    folder: Path, processes: int, cores: list[int], *, shards: int = SHARDS, is_host: bool = False
) -> Iterator[Server]:
    """Run a hub over a store in ``folder``, its process i on core ``cores[i]``.

    Args:
        shards: of a new store.
        is_host: whether it is one of several hosts on the store, with a URL of its own for edges.
    """
    port = free_port()
    more = f"advertise: [http://127.0.0.1:{port}]\n" if is_host else ""
    config = folder / f"hub-{port}.yaml"
    config.write_text(CONFIG.format(port=port, folder=folder, processes=processes, shards=shards, more=more))
    command = [sys.executable, "-m", "weft", "hub", "run", str(config), "--log-level", "error"]
    pin(cores[0])
    hub = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert hub.stdout is not None
        if "ready" not in hub.stdout.readline():
            raise SystemExit("the hub did not start")
        main = psutil.Process(hub.pid)
        workers = sorted(main.children(), key=lambda process: process.cmdline()[-1]) or [main]
        for worker, core in zip(workers, cores, strict=False):
            worker.cpu_affinity([core])
        yield Server([f"http://127.0.0.1:{port + n}" for n in range(processes)], workers, folder)
        hub.terminate()
        if hub.wait(30) != 0:
            raise SystemExit(f"the hub ended with status {hub.returncode}")
    finally:
        if hub.poll() is None:
            hub.kill()
            hub.wait()


def until_divided(urls: Sequence[str], shards: int) -> list[set[int]]:
    """Return the shards of the process at each URL, once each shard has one owner and each process owns some."""
    deadline = time.monotonic() + DIVIDED_S_MAX
    while time.monotonic() < deadline:
        owned = [_own(url) for url in urls]
        if all(owned) and sum(map(len, owned)) == len(set().union(*owned)) == shards:
            return owned
        time.sleep(1.0)
    raise SystemExit(f"the processes did not divide the shards within {DIVIDED_S_MAX:.0f} s")


def _own(url: str) -> set[int]:
    with urlopen(f"{url}/v1/status?shards=own", timeout=30) as answer:
        return {view["shard"] for view in json.load(answer)["shards"] if view["own"]}


async def records_in_log(folder: Path) -> tuple[int, float, int]:
    """Return the records that a fold of every shard from its first chunk finds, the seconds it took, and the chunks."""
    started = time.perf_counter()
    store = open_store(str(folder / "store"))
    cluster = await open_cluster(store, None)
    records = count = 0
    for shard in range(cluster.shards):
        state = ShardState(cluster.cluster_id, shard)
        await ShardLog(store, cluster, shard).extend(state)
        records += sum(state.next_offset.values())
        count += state.n + 1
    return records, time.perf_counter() - started, count


def check_log(folder: Path, acked_batches: int, records_per_batch: int) -> int:
    """Return the records of the log; end the benchmark when something acknowledged is missing."""
    stored, _, _ = asyncio.run(records_in_log(folder))
    if stored < acked_batches * records_per_batch:
        raise SystemExit(f"{acked_batches * records_per_batch} records were acknowledged, the log holds {stored}")
    return stored
