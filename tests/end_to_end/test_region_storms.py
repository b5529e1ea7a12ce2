"""Two regions of two hub nodes each, and an edge that goes over between them, with kills of all and lines that are
cut.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest

from examples.demo.fabric import Edge, FabricError
from tests.end_to_end.storms import Fabric, HubNode, free_ports, storm
from tests.end_to_end.test_kills import DRAIN_TIMEOUT_S, STREAM, check_every_message
from tests.support.outcomes import outcome
from tests.support.s3_servers import StorePath, Way
from tests.support.slices import SLICE
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.proofs.audit.report import compare_regions
from weft.storage.object_store import open_store

pytestmark = [pytest.mark.processes, pytest.mark.slow]

BLOWS = SLICE.amount(ci=5, night=15)
MESSAGES_MIN = 75
"""Acknowledged for each blow, on a busy machine."""
SETTINGS = """\
advertise: http://127.0.0.1:{own}
peers: true
regions: {{other: {{to: [{urls}]}}}}"""


class Regions(Fabric):
    """Two regions that relay to each other, by lines that can be cut. The edge knows all nodes without these, and takes
    them only where a node sends it on."""

    def __init__(self, directory: Path) -> None:
        ports = [free_ports(1) for _ in range(4)]
        self.paths = [StorePath(port) for port in ports]
        self.hubs = []
        for at, port in enumerate(ports):
            region = at // 2
            others = [path.port for path in self.paths[2 - 2 * region : 4 - 2 * region]]
            urls = ", ".join(f'"http://127.0.0.1:{other}"' for other in others)
            settings = SETTINGS.format(own=self.paths[at].port, urls=urls)
            store = str(directory / f"store-{region}")
            self.hubs.append(HubNode(directory / f"hub-{at}", f"hub-{at}", store, 1, settings, port=port, shards=1))
        self.stores = [open_store(str(directory / f"store-{region}")) for region in range(2)]
        self.edges = [self._edge(directory / "edge-0", 0, "")]
        self._loads = []

    def of(self, region: int) -> list[HubNode]:
        """Return the nodes of a region."""
        return self.hubs[2 * region : 2 * region + 2]

    def hub_of(self, edge: Edge) -> HubNode | None:
        """Return the node that the edge's link goes to."""
        link = self.link(edge)
        port = int(link["url"].rstrip("/").rpartition(":")[2] or 0)
        found = [hub for hub, path in zip(self.hubs, self.paths, strict=True) if port in (hub.port, path.port)]
        return found[0] if found and link["state"] == "connected" else None

    def cut(self, way: Way) -> None:
        """Set the lines between the regions, both ways."""
        for path in self.paths:
            path.set(way)

    def finish(self, *, audited: bool = True) -> Counter[str]:
        """Stop the devices, wait until both tables have everything, and count every message in each."""
        assert audited
        acked = self._loads[0].finish()
        expected, rows = self.edges[0].status()["streams"][STREAM]["durable_end"], [-1, -1]

        def are_whole() -> bool:
            for region in range(2):
                try:
                    rows[region] = self.of(region)[0].table_rows()
                except (FabricError, OSError):
                    return False
            return rows == [expected, expected]

        wait_until(
            are_whole,
            DRAIN_TIMEOUT_S,
            lambda: f"{rows} of {expected} rows are there; {self.reported()}",
            interval_s=0.5,
        )
        counted = [check_every_message(store, acked) for store in self.stores]
        with outcome():
            for store in self.stores:
                report = asyncio.run(audit(store, "default", STREAM))
                assert report.agrees, report.problems
                assert report.total("log_doubled") == report.total("table_doubled") == report.total("holes") == 0
                assert not any(lane.gaps for lane in report.lanes)
            compared = asyncio.run(compare_regions((self.stores[0], self.stores[1]), "default", STREAM))
            assert compared.agree, compared
            assert counted[0] == counted[1]
        return counted[0]


@pytest.mark.timeout(900)
@pytest.mark.search(turns=2)
def test_two_regions_end_whole_whatever_is_killed_or_cut_between_them(tmp_path: Path) -> None:
    fabric = Regions(tmp_path)

    def kill_node(chance: random.Random) -> None:
        hub = chance.choice(fabric.hubs)
        hub.kill()
        hub.start()

    def lose_region(chance: random.Random) -> None:
        """The edge goes to the other region with what it has not deleted."""
        region = chance.randrange(2)
        for hub in fabric.of(region):
            hub.kill()
        try:
            wait_until(
                lambda: fabric.hub_of(fabric.edges[0]) in fabric.of(1 - region), 60, "a link to the other region"
            )
            time.sleep(chance.uniform(0.0, 2.0))
        finally:
            for hub in fabric.of(region):
                hub.start()

    def partition(chance: random.Random) -> None:
        loses = chance.random() < 0.5
        fabric.cut(Way.CUT if loses else Way.SILENT)
        if loses:
            lose_region(chance)
        time.sleep(chance.uniform(0.5, 2.0))
        fabric.cut(Way.OPEN)

    def kill_edge(_: random.Random) -> None:
        fabric.edges[0].kill()
        fabric.edges[0].start()

    hurts: list[Callable[[random.Random], None]] = [lose_region, partition, kill_node, kill_edge]
    counted = storm(fabric, hurts, BLOWS, SLICE.seed)
    print(dict(counted))
    assert counted["messages"] > MESSAGES_MIN * BLOWS


# --- A ring of three regions, each a hub of its own with an edge, of which each is killed in turn


REGIONS = 3
REGION_RING_SETTINGS = "regions: {{next: {{to: ['http://127.0.0.1:{port}'], forward_relayed: true}}}}"


class Ring(Fabric):
    """Each region sends on to the next one what its edge and the region before it brought."""

    def __init__(self, directory: Path) -> None:
        ports = [free_ports(1) for _ in range(REGIONS)]
        self.paths, self._loads = [], []
        self.hubs = [
            HubNode(
                directory / f"hub-{at}",
                f"hub-{at}",
                str(directory / f"store-{at}"),
                1,
                REGION_RING_SETTINGS.format(port=ports[(at + 1) % REGIONS]),
                port=port,
                shards=1,
            )
            for at, port in enumerate(ports)
        ]
        self.stores = [open_store(str(directory / f"store-{at}")) for at in range(REGIONS)]
        self.edges = [self._edge(directory / f"edge-{at}", at, "") for at in range(REGIONS)]

    def _edge(self, directory: Path, at: int, link_settings: str) -> Edge:
        """Make an edge that knows the hub of its region alone."""
        every = self.hubs
        self.hubs = every[at : at + 1]
        try:
            return super()._edge(directory, at, link_settings)
        finally:
            self.hubs = every

    def finish(self, *, audited: bool = True) -> Counter[str]:
        """Stop the devices, wait until each table has everything, and count every message in each."""
        assert audited
        acked: dict[str, int] = {}
        for load in self._loads:
            acked |= load.finish()
        rows = [-1] * REGIONS

        def are_whole() -> bool:
            # Also records that no device has an acknowledgement for are in the edges' logs, and go to all regions.
            expected = sum(edge.status()["streams"][STREAM]["durable_end"] for edge in self.edges)
            for at, hub in enumerate(self.hubs):
                try:
                    rows[at] = hub.table_rows()
                except (FabricError, OSError):
                    return False
            return rows == [expected] * REGIONS

        wait_until(are_whole, DRAIN_TIMEOUT_S, lambda: f"{rows} rows are there; {self.reported()}", interval_s=0.5)
        counted = [check_every_message(store, acked) for store in self.stores]
        with outcome():
            for store in self.stores:
                report = asyncio.run(audit(store, "default", STREAM))
                assert report.agrees, report.problems
                assert report.total("log_doubled") == report.total("table_doubled") == report.total("holes") == 0
                assert not any(lane.gaps for lane in report.lanes)
            for first, second in combinations(self.stores, 2):
                compared = asyncio.run(compare_regions((first, second), "default", STREAM))
                assert compared.agree, compared
            assert counted[0] == counted[1] == counted[2]
        return counted[0]


@pytest.mark.timeout(600)
@pytest.mark.search(turns=4)
def test_a_ring_of_three_regions_converges_although_each_is_killed_in_turn(tmp_path: Path) -> None:
    fabric = Ring(tmp_path)

    def kill(at: int, _: random.Random) -> None:
        fabric.hubs[at].kill()
        fabric.hubs[at].start()

    counted = storm(fabric, [partial(kill, at) for at in range(REGIONS)], REGIONS, SLICE.seed)
    print(dict(counted))
    assert counted["messages"] > REGIONS
