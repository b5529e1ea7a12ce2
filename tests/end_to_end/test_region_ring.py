"""A ring of three regions, each a hub of its own with an edge, of which each is killed in turn."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest

from examples.demo.fabric import Edge, FabricError
from tests.end_to_end.storms import Fabric, HubNode, free_ports, storm
from tests.end_to_end.test_kills import DRAIN_TIMEOUT_S, STREAM, check_every_message
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.proofs.audit.report import compare_regions
from weft.storage.object_store import open_store

REGIONS = 3
SETTINGS = "regions: {{next: {{to: ['http://127.0.0.1:{port}'], forward_relayed: true}}}}"
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]


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
                SETTINGS.format(port=ports[(at + 1) % REGIONS]),
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


@pytest.mark.search(turns=4)
def test_a_ring_of_three_regions_converges_although_each_is_killed_in_turn(tmp_path: Path) -> None:
    fabric = Ring(tmp_path)

    def kill(at: int, _: random.Random) -> None:
        fabric.hubs[at].kill()
        fabric.hubs[at].start()

    counted = storm(fabric, [partial(kill, at) for at in range(REGIONS)], REGIONS, SLICE.seed)
    print(dict(counted))
    assert counted["messages"] > REGIONS
