"""A clock that is set, at a hub and at an edge, makes no claim of completeness false and loses no row, on real
processes: what was claimed is counted again by the clock of the test."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from examples.demo.fabric import DemoHub, get_json
from tests.end_to_end.stepping_clock import SteppingClock
from tests.end_to_end.test_claims import Fleet
from tests.end_to_end.test_kills import STREAM, check_every_message
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store

pytestmark = [pytest.mark.processes, pytest.mark.slow]
PATIENCE_S = 30.0
HOUR_S = 3600.0
YEAR_S = 365.25 * 86_400


class Claim(NamedTuple):
    """An answer of the hub: everything up to a moment was there, so many records in all."""

    moment: str
    records: int


def claim_of(hub: DemoHub) -> Claim | None:
    answer = get_json(f"{hub.url}/v1/streams/{STREAM}/completeness")
    moment = answer["complete_up_to"]
    return None if moment is None else Claim(moment, hub.counts()[STREAM][0])


def held_back(hub: DemoHub) -> Any:
    return get_json(f"{hub.url}/v1/streams/{STREAM}/completeness")["held_back_by"]


def is_wrong(hub: DemoHub) -> bool:
    """Whether the hub says that it does not believe its clock, and claims nothing."""
    answer = get_json(f"{hub.url}/v1/streams/{STREAM}/completeness")
    held_back = answer["held_back_by"]
    return bool(held_back) and held_back[0]["reason"] == "hub_clock_wrong" and answer["complete_up_to"] is None


def weft(clock: SteppingClock, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command on the hub's machine, whose clock is the hub's."""
    command = [sys.executable, "-m", "weft", *map(str, arguments)]
    return subprocess.run(command, env=os.environ | clock.environment, capture_output=True, text=True, check=False)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def rows_by_time(hub: DemoHub) -> list[str]:
    """The times of all rows in the table, to the microsecond, as the hub writes moments."""
    from deltalake import DeltaTable

    uri, options = open_store(hub.store).location(table_key("default", STREAM))
    times = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["_time"]).column("_time")
    return [f"{each:%Y-%m-%dT%H:%M:%S.%f}" for each in times.to_pylist()]


@pytest.mark.timeout(200)
def test_a_hub_whose_clock_is_set_claims_nothing_false(tmp_path: Path) -> None:
    """Years ahead, an hour ahead and an hour back, also over a restart: while it is wrong, the hub claims nothing at
    all, and edges continue when it is right again."""
    fleet = Fleet(tmp_path, random.Random(7))
    hub = fleet.hub
    hub_clock = SteppingClock(tmp_path / "hub-clock")
    hub.environment = hub_clock.environment
    for edge in fleet.edges[:2]:
        edge.environment = SteppingClock(tmp_path / f"{edge.name}-clock").environment
    claims: list[Claim] = []
    acked: dict[str, int] = {}

    def claimed_since(moment: str) -> bool:
        found = claim_of(hub)
        claims.extend([] if found is None else [found])
        return found is not None and found.moment > moment

    try:
        hub.start()
        for edge in fleet.edges:
            edge.start()
        loads = [fleet.load(edge, f"{edge.name}-") for edge in fleet.edges]
        wait_until(lambda: claimed_since(""), PATIENCE_S, "a first claim")
        hub_clock.set(14 * YEAR_S)
        wait_until(lambda: is_wrong(hub), PATIENCE_S, "the hub to find its clock wrong while it runs")
        for offset in (HOUR_S, -HOUR_S, 0.0):
            hub_clock.set(offset)
            fleet.clock.set(offset / -1800)  # one edge's, the other way by two seconds
            fleet.kill_hub()
            since = now()
            if offset:
                wait_until(lambda: is_wrong(hub), PATIENCE_S, "the hub to find its clock wrong after its start")
                refused = weft(
                    hub_clock, "hub", "retire", hub.config_path, fleet.edges[2].name, "--reason", "-", "--yes"
                )
                assert refused.returncode == 1
                assert (
                    "CLOCK: this machine's clock is 60.0 minutes"
                    in weft(hub_clock, "hub", "status", hub.config_path).stdout
                )
                assert "nothing was written: this machine's clock is 60.0 minutes" in refused.stderr
            else:
                wait_until(partial(claimed_since, since), PATIENCE_S, partial(held_back, hub))
        for load in loads:
            acked |= load.finish()
        wait_until(lambda: hub.table_rows() >= sum(acked.values()), PATIENCE_S, "the table")
    finally:
        fleet.stop()
    times = rows_by_time(hub)
    assert len(times) == sum(acked.values())
    for claim in claims:
        covered = sum(each <= claim.moment[:26] for each in times)
        assert covered <= claim.records, f"{covered - claim.records} rows came after {claim} had covered them"
    assert [claim.moment for claim in claims] == sorted(claim.moment for claim in claims), "a claim was taken back"
    assert check_every_message(open_store(hub.store), acked)["rows"] == sum(acked.values())
    assert asyncio.run(audit(open_store(hub.store), "default", STREAM)).agrees
