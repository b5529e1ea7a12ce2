"""A storm over several hosts: hub nodes in namespaces that are killed, stopped, cut off and restarted under load.

``python -m tests.end_to_end.hosts.storm FOLDER`` runs in a network namespace of its own, where it is root (`test_hosts`
starts it there), and prints one JSON document: what was lost or doubled, how long acknowledgements took, and how long
edges were without a hub after each blow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.common import write_results
from examples.demo.fabric import FabricError
from tests.end_to_end.hosts.fleet import STREAM, Fleet
from tests.end_to_end.hosts.network import BRIDGE_ADDRESS, Host, make_bridge
from tests.end_to_end.storms import HubNode
from tests.support.s3_servers import VERSITYGW, S3Server, StorePath, Way, built
from tests.support.waiting import Patience
from weft.proofs.audit.audit import audit
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store

DRAIN_TIMEOUT_S = 180.0
SHARDS = 16
STOPPED_S = 25.0
"""Of a host that is stopped: longer than its entry counts, and than its watermark holds."""
OWNERS_S = 45.0
"""Within which a host that came is given its shards."""
CHUNKS = "shard-*/chunk"
HUB_SETTINGS = "anonymous: allowed_beyond_loopback\nadvertise: [{urls}]"
BLOWS = ("drain", "kill", "kill_one", "stop", "cut", "mute")
STORE_BLOWS = ("fail", "lose", "slow", "silent")


class Hosts:
    """Hub nodes, one on each host, over one store."""

    def __init__(self, folder: Path, hosts: int, processes: int, server: S3Server | None) -> None:
        self.hosts = [Host(number) for number in range(hosts)]
        self.paths = [StorePath(server.port, address=BRIDGE_ADDRESS) for _ in self.hosts] if server else []
        uri = f"{server.uri}/hub" if server else str(folder / "store")
        self.nodes: list[HubNode] = []
        for number, host in enumerate(self.hosts):
            urls = [f"http://{host.address}:{7480 + process}" for process in range(processes)]
            node = HubNode(
                folder / f"hub-{number}",
                f"hub-{number}",
                uri,
                processes,
                HUB_SETTINGS.format(urls=", ".join(urls)),
                address=host.address,
                port=7480,
                shards=SHARDS,
            )
            node.command = [*host.inside, *node.command]
            if server is not None:
                node.environment = server.options(self.paths[number].port)
            self.nodes.append(node)
        self.urls = [[f"http://{host.address}:{7480 + process}" for process in range(processes)] for host in self.hosts]
        self._chunks = None if server else folder / "store"
        self.started = 0
        """Number of nodes that were started, the first ones."""
        self.store: ObjectStore = open_store(uri, server.options() if server else None)

    async def start(self, count: int) -> None:
        """Start nodes at once, the first ones; they answer when this returns."""
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in self.nodes[self.started : count]))
        self.started = count

    def stop(self) -> None:
        """End all nodes, paths and hosts."""
        for node in self.nodes:
            with contextlib.suppress(ProcessLookupError, AssertionError):
                node.resume()
        for node in self.nodes:
            node.stop()
        for path in self.paths:
            path.close()
        for host in self.hosts:
            host.close()

    def shares(self) -> list[int]:
        """Return how many shards the processes of each host own, as they say."""
        found = []
        for node, urls in zip(self.nodes, self.urls, strict=True):
            statuses = []
            for url in urls:
                with contextlib.suppress(FabricError):
                    statuses.append(node.ask(f"{url}/v1/status"))
            found.append(sum(shard["own"] for status in statuses for shard in status["shards"]))
        return found

    def writes(self) -> int:
        """Return the number of objects that the nodes have written: PUTs to a server, or chunks in a folder."""
        if self._chunks is None:
            return sum(path.puts for path in self.paths)
        logs = ([int(each.name) for each in log.iterdir() if each.name.isdigit()] for log in self._chunks.glob(CHUNKS))
        return sum(max(log, default=-1) + 1 for log in logs)

    def processor_s(self) -> list[float]:
        """Return the processor time that the processes of each node have used, seconds."""
        found = []
        for node in self.nodes[: self.started]:
            processes = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
            found.append(sum(sum(each.cpu_times()[:2]) for each in processes))
        return found

    async def until_divided(self) -> None:
        """Wait until each shard has one owner, and each host that runs owns some."""
        patience = Patience(3 * OWNERS_S)
        while True:
            shares = await asyncio.to_thread(self.shares)
            if sum(shares) == SHARDS and min(shares[: self.started]) > 0:
                return
            assert not patience.is_over(), f"the hosts own {shares} of {SHARDS} shards"
            await asyncio.sleep(0.5)


class Blow:
    """What a blow did, and to whom."""

    def __init__(self, kind: str, victim: int) -> None:
        self.kind, self.victim = kind, victim
        self.since = self.until = time.monotonic()
        """Moments at which it began, and after which the edges that it hit count as others do again."""
        self.edges: list[int] = []
        """Edges that were served by the victim."""


async def strike(hosts: Hosts, blow: Blow, chance: random.Random) -> None:
    """Hurt one host, and mend it."""
    node, host, do = hosts.nodes[blow.victim], hosts.hosts[blow.victim], asyncio.to_thread
    blow.since = time.monotonic()
    match blow.kind:
        case "drain":
            await do(node.stop)
            await do(node.start)
        case "kill":
            node.kill()
            await asyncio.sleep(chance.uniform(0.0, 20.0))
            await do(node.start)
        case "kill_one":
            await do(node.kill_one, chance)
        case "stop":
            node.pause()
            await asyncio.sleep(STOPPED_S)
            node.resume()
        case "cut" | "mute":
            (host.cut if blow.kind == "cut" else host.mute)()
            await asyncio.sleep(chance.uniform(3.0, 25.0))
            host.mend()
        case _:
            ways = {"fail": Way.FAILED, "lose": Way.LOST, "slow": Way.SLOW, "silent": Way.SILENT}
            path = hosts.paths[blow.victim]
            path.set(ways[blow.kind])
            await asyncio.sleep(chance.uniform(3.0, 15.0))
            path.set(Way.OPEN)


async def measure_calm(hosts: Hosts, fleet: Fleet, seconds: float) -> dict[str, Any]:
    """Return what the hub costs while nothing is hurt, and how even its nodes' shares of the work are."""
    writes, began = hosts.writes(), time.monotonic()
    used, records = hosts.processor_s(), sum(len(log.acked_at) for log in fleet.logs)
    await asyncio.sleep(seconds)
    took_s, records = time.monotonic() - began, sum(len(log.acked_at) for log in fleet.logs) - records
    spent = [after - before for before, after in zip(used, hosts.processor_s(), strict=True)]
    return {
        "writes_per_s": round((hosts.writes() - writes) / took_s, 2),
        "hub_us_per_record": round(1e6 * sum(spent) / max(1, records), 1),
        "edges_by_host": [len(fleet.at(urls)) for urls in hosts.urls],
        "processor_s_by_host": [round(each, 2) for each in spent],
    }


def share(latencies: Sequence[float], part: float) -> float:
    """Return the value below which this part of sorted values is."""
    return round(latencies[min(len(latencies) - 1, int(part * len(latencies)))], 3) if latencies else 0.0


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return what of sorted values is shown."""
    return {name: share(values, part) for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


def served_again(fleet: Fleet, blows: Sequence[Blow], kind: str) -> dict[str, float]:
    """Return how long the edges of hosts that were hurt in one way got no acknowledgement of a new record."""
    hurt = [blow for blow in blows if blow.kind == kind]
    away = sorted(itertools.chain(*(fleet.served_again(blow.edges, blow.since) for blow in hurt)))
    return {"blows": len(hurt), "edges": len(away), **spread(away)}


async def check(store: ObjectStore, fleet: Fleet) -> dict[str, Any]:
    """Compare log and table with what the edges published: everything once, and in each lane's order."""
    from deltalake import DeltaTable

    expected = {log.edge: len(log.made_at) for log in fleet.logs}
    uri, options = store.location(table_key("default", STREAM))
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    while True:
        table = DeltaTable(uri, storage_options=options)
        rows = table.to_pyarrow_table(columns=["_edge", "_seq", "_shard", "_offset", "payload"])
        if rows.num_rows >= sum(expected.values()) or time.monotonic() > deadline:
            break
        await asyncio.sleep(1.0)
    found: dict[str, list[tuple[int, int, int]]] = {edge: [] for edge in expected}
    for row in rows.to_pylist():
        found[row["_edge"]].append((row["_offset"], row["_seq"], int(row["payload"])))
    report = await audit(store, "default", STREAM)
    by_edge = {edge: [seq for _, seq, _ in sorted(numbers)] for edge, numbers in found.items()}
    return {
        "records": sum(expected.values()),
        "lost": sum(len(set(range(expected[edge])) - set(seqs)) for edge, seqs in by_edge.items()),
        "doubled": sum(count - 1 for seqs in by_edge.values() for count in Counter(seqs).values()),
        "out_of_order": sum(b < a for seqs in by_edge.values() for a, b in itertools.pairwise(seqs)),
        "wrong": sum(seq != number for numbers in found.values() for _, seq, number in numbers),
        "audit": report.problems,
        "log_records": report.total("records"),
        "log_doubled": report.total("log_doubled"),
        "gaps": sum(len(lane.gaps) for lane in report.lanes),
    }


async def storm(options: argparse.Namespace) -> dict[str, Any]:
    """Run the storm and return what it showed."""
    chance = random.Random(options.seed)
    make_bridge()
    server = S3Server(VERSITYGW, built(VERSITYGW), options.folder / "server", BRIDGE_ADDRESS) if options.s3 else None
    hosts: Hosts | None = None
    fleet: Fleet | None = None
    blows: list[Blow] = []
    try:
        with contextlib.ExitStack() as stack:
            if server is not None:
                stack.enter_context(server)
            hosts = Hosts(options.folder, options.hosts, options.processes, server)
            await hosts.start(options.hosts - options.join)
            await hosts.until_divided()
            urls = [urls[0] for urls in hosts.urls]
            fleet = Fleet(options.edges, urls, rate=options.rate, ack_timeout_s=options.ack_timeout)
            fleet.start()
            await asyncio.sleep(options.calm)
            calm = await measure_calm(hosts, fleet, options.calm)
            if options.join:
                before, joined = calm, time.monotonic()
                await hosts.start(options.hosts)
                await hosts.until_divided()
                await asyncio.sleep(options.calm)
                calm = {
                    "slowest_ack_s_of_join": round(fleet.latencies(since=joined)[-1], 3),
                    "before_join": before,
                    **await measure_calm(hosts, fleet, options.calm),
                }
                calm["writes_ratio"] = round(calm["writes_per_s"] / max(before["writes_per_s"], 0.01), 3)
            began = time.monotonic()
            end = began + options.seconds
            kinds = options.only or list(BLOWS + (STORE_BLOWS if server else ()))
            while time.monotonic() < end:
                if not blows or len(blows) % len(kinds) == 0:
                    chance.shuffle(kinds)
                blow = Blow(kinds[len(blows) % len(kinds)], chance.randrange(len(hosts.hosts)))
                blow.edges = fleet.at(hosts.urls[blow.victim])
                blows.append(blow)
                logging.info("%s of host %d with %d edges", blow.kind, blow.victim, len(blow.edges))
                await strike(hosts, blow, chance)
                blow.until = time.monotonic() + options.ack_timeout
                await asyncio.sleep(chance.uniform(2.0, options.pause))
            stormed_s = time.monotonic() - began
            shares = await asyncio.to_thread(hosts.shares)
            await fleet.finish(DRAIN_TIMEOUT_S)
            checked = await check(hosts.store, fleet)
    finally:
        if fleet is not None:
            await fleet.close()
        if hosts is not None:
            hosts.stop()
    return {
        **checked,
        **calm,
        "storm_s": round(stormed_s, 1),
        "shards_at_the_end": shares,
        "ack_s": spread(fleet.latencies()),
        "ack_s_of_edges_not_hit": spread(
            fleet.latencies(leaving_out=[(each.since, each.until, each.edges) for each in blows])
        ),
        "served_again_s": {kind: served_again(fleet, blows, kind) for kind in sorted({blow.kind for blow in blows})},
        "blows": [
            {"kind": blow.kind, "edges": len(blow.edges), "again_s": round(max(away, default=0.0), 3)}
            for blow in blows
            for away in [fleet.served_again(blow.edges, blow.since)]
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--join", type=int, default=0, help="number of the hosts that start under load, before blows")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--edges", type=int, default=50)
    parser.add_argument("--rate", type=float, default=20.0, help="records a second of each edge")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--calm", type=float, default=5.0, help="seconds before the first blow, twice")
    parser.add_argument("--pause", type=float, default=10.0, help="longest time between blows, seconds")
    parser.add_argument("--ack-timeout", type=float, default=3.0, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--s3", action="store_true", help="a real S3 server holds the store, not a folder")
    parser.add_argument("--write", action="store_true", help="write what it showed to bench/results, too")
    parser.add_argument("--only", action="append", choices=BLOWS + STORE_BLOWS, help="a blow; any if there is none")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options, load = parser.parse_args(), round(os.getloadavg()[0], 1)
    shown = {"load_of_machine_before": load, **asyncio.run(storm(options))}
    if options.write:
        chosen = {
            name: getattr(options, name) for name in ("hosts", "processes", "edges", "rate", "ack_timeout", "seed")
        }
        write_results(f"host_storm_{'s3' if options.s3 else 'folder'}", [{**chosen, **shown}])
    print(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
