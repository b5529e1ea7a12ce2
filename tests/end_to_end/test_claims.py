"""No claim of completeness is false, on real processes: a copied log, a disk that dies and comes back, a clock that is
set back, and a hub that is killed under all of it.
"""

from __future__ import annotations

import asyncio
import calendar
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from examples.demo.fabric import DemoHub, Edge, get_json
from tests.end_to_end.stepping_clock import SteppingClock
from tests.end_to_end.test_kills import STREAM, Load, check_every_message
from tests.support import forked
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store

pytestmark = pytest.mark.processes

EDGES = ("edge-0", "edge-1", "edge-2")
PATIENCE_S = 30.0


class Claim(NamedTuple):
    """An answer of the hub: everything up to ``moment`` is there."""

    asked_us: int
    moment_us: int


class Claims(threading.Thread):
    """Asks the hub again and again up to what moment the stream is complete, and remembers what it said."""

    def __init__(self, hub: DemoHub) -> None:
        super().__init__(daemon=True)
        self._url = f"{hub.url}/v1/streams/{STREAM}/completeness"
        self._stopping = threading.Event()
        self.made: list[Claim] = []
        self.reasons: set[str] = set()
        self.held_back_by: object = None
        """Newest reasons."""

    def run(self) -> None:
        while not self._stopping.wait(0.02):
            try:
                answer = get_json(self._url)
            except OSError:
                continue  # it was killed just now
            self.held_back_by = answer["held_back_by"]
            self.reasons |= {held["reason"] for held in answer["held_back_by"]}
            if (moment := answer["complete_up_to"]) is not None:
                self.made.append(Claim(time.time_ns() // 1000, _micros(moment)))

    def finish(self) -> list[Claim]:
        self._stopping.set()
        self.join()
        return self.made

    def newest(self) -> int:
        """Return the newest moment that was claimed, microseconds since 1970."""
        return self.made[-1].moment_us if self.made else 0


def _micros(text: str) -> int:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))
    return seconds * 1_000_000 + int(fraction[:6].ljust(6, "0") or 0)


class Fleet:
    """A hub that expects three edges, and the edges."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.hub = DemoHub(folder)
        config = self.hub.config_path
        config.write_text(config.read_text() + "mark_interval: 1s\n")
        weft("hub", "stream", "expect", str(config), STREAM, *EDGES)
        self.clock = SteppingClock(folder / "clock")
        self.edges = [self.edge(name, name) for name in EDGES]
        self.edges[2].environment = self.clock.environment
        self.loads: list[Load] = []

    def edge(self, name: str, folder: str) -> Edge:
        """Make an edge node of this name with its data in a folder."""
        directory = self.folder / f"of-{folder}"
        directory.mkdir()
        edge = Edge(directory, name, self.hub.port)
        text = edge.config_path.read_text().replace("telemetry:", f"{STREAM}:")
        text = text.replace("sensors/{device}/telemetry", "load/{device}/count")
        settings = ("hold_at_start: 200ms", "retry_min: 50ms", "retry_max: 500ms", "mark_interval: 1s")
        link = "\n    ".join((f"to: {self.hub.url}", *settings))
        edge.config_path.write_text(text.replace(f"to: {self.hub.url}", link))
        return edge

    def load(self, edge: Edge, prefix: str) -> Load:
        load = Load(edge.mqtt_port, options=["--devices", "1", "--rate", "200", "--prefix", prefix])
        self.loads.append(load)
        return load

    def send(self, edge: Edge, prefix: str, seconds: float) -> dict[str, int]:
        """Publish for some time; every message is acknowledged when this returns."""
        load = self.load(edge, prefix)
        before = records(edge)
        wait_until(lambda: records(edge) > before, PATIENCE_S, "the first message")
        time.sleep(seconds)  # the load is the test
        return load.finish()

    def kill_hub(self) -> None:
        self.hub.kill()
        time.sleep(self.chance.uniform(0, 0.3))
        self.hub.start()

    def stop(self) -> None:
        for load in self.loads:
            load.kill()
        for service in (*self.edges, self.hub):
            service.stop()


def records(edge: Edge) -> int:
    streams = edge.status()["streams"]
    return int(streams[STREAM]["durable_end"]) if STREAM in streams else 0


def link_state(edge: Edge) -> str:
    return str(edge.status()["links"]["cloud"]["state"])


def weft(*arguments: object) -> str:
    done = forked.run(
        [sys.executable, "-m", "weft", *map(str, arguments)], stdout=subprocess.PIPE, check=True, text=True
    )
    return str(done.stdout)


def copy_the_node(fleet: Fleet, claims: Claims, acked: dict[str, int]) -> dict[str, int]:
    """A node's data_dir is copied while it is off. Both continue without a hub, then the hub comes back; an operator
    decides for the node that the hub took.

    Returns:
        What was acknowledged on the node that the hub refused.
    """
    original = fleet.edges[0]
    original.kill()
    copy = fleet.edge(EDGES[0], "copy")
    fleet.edges.append(copy)
    data, its = (edge.config_path.parent / EDGES[0] for edge in (original, copy))
    shutil.copytree(data, its, ignore=shutil.ignore_patterns("*.sock"))
    fleet.hub.kill()
    reported = {}
    for edge, prefix in ((original, "original-"), (copy, "copy-")):
        edge.start()
        reported[edge] = fleet.send(edge, prefix, 0.3)
    fleet.hub.start()
    both = (original, copy)
    wait_until(lambda: "conflict" in map(link_state, both), PATIENCE_S, "the refusal of one of two copies")
    refused = next(edge for edge in both if link_state(edge) == "conflict")
    taken = original if refused is copy else copy
    wait_until(lambda: "conflict" in claims.reasons, PATIENCE_S, "the conflict to hold the stream back")
    fleet.kill_hub()
    claims.reasons.clear()
    wait_until(lambda: "conflict" in claims.reasons, PATIENCE_S, "the conflict to be in the hub's log")
    status = weft("hub", "status", fleet.hub.config_path)
    assert re.search(rf"^conflict: edge.*\ndefault/{EDGES[0]}\t.*\t{STREAM}\t", status, re.MULTILINE), status
    refused.stop()
    weft("hub", "adopt", fleet.hub.config_path, EDGES[0], "--yes")
    acked |= reported[taken]
    sql = f"SELECT key, payload FROM {STREAM}"
    rows = [json.loads(line) for line in weft("edge", "query", refused.config_path, sql, "--json").splitlines()]
    for device, count in reported[refused].items():
        found = {int(row["payload"]) for row in rows if row["key"] == f"load/{device}/count"}
        assert found == set(range(count)), "what the refused node acknowledged is on its disk"
    return reported[refused]


def lose_a_disk(fleet: Fleet, acked: dict[str, int]) -> tuple[Path, str]:
    """A disk dies with messages that no hub has; the node continues with an empty one.

    Returns:
        The folder of the disk, which is mended later, and the id of its log.
    """
    edge = fleet.edges[1]
    fleet.hub.kill()
    acked |= fleet.send(edge, "before-", 0.3)
    log_id = str(edge.status()["log_id"])
    edge.kill()
    disk = edge.config_path.parent / EDGES[1]
    aside = disk.with_name("kept-aside")
    disk.rename(aside)
    edge.start()
    fleet.hub.start()
    acked |= fleet.send(edge, "after-", 0.3)
    return aside, log_id


def set_the_clock_back(fleet: Fleet) -> None:
    for offset in (-3600.0, 120.0, -5.0, 0.0):
        fleet.clock.set(offset)
        time.sleep(fleet.chance.uniform(0.2, 0.6))  # the random moment is the test
        if fleet.chance.random() < 0.5:
            fleet.kill_hub()


def bring_the_disk_back(fleet: Fleet, aside: Path, log_id: str) -> None:
    edge = fleet.edges[1]
    weft("edge", "import", edge.config_path, aside)
    states: Any = lambda: [each["state"] for each in edge.status()["imported"].values()]  # noqa: E731
    wait_until(lambda: states() == ["done"], PATIENCE_S, "the import of the disk")
    weft("hub", "retire", fleet.hub.config_path, EDGES[1], "--log", log_id, "--reason", "imported", "--yes")


@outcome()
def check_claims(fleet: Fleet, claims: list[Claim]) -> int:
    """Check that no row came, after a claim was made, with a time that the claim covers. Returns the stepped rows."""
    from deltalake import DeltaTable

    uri, options = open_store(fleet.hub.store).location(table_key("default", STREAM))
    table = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["_received", "_time", "_clock", "_edge"])
    received, times = (table.column(name).cast("int64").to_pylist() for name in ("_received", "_time"))
    clocks, edges = table.column("_clock").to_pylist(), table.column("_edge").to_pylist()
    newest = 0
    for claim in claims:
        assert claim.moment_us >= newest, "a claim was taken back"
        newest = claim.moment_us
    # The claim that covers a row's time and was made first is the one that the row could make false.
    for row_received, row_time, clock, edge in zip(received, times, clocks, edges, strict=True):
        for claim in claims:
            if claim.moment_us >= row_time:
                late_us = row_received - claim.asked_us
                assert late_us <= 0, f"a row of {edge} ({clock}) came {late_us} us after {claim} had covered it"
                break
    return int(clocks.count("stepped"))


@pytest.mark.search
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SLICE.seeds(ci=1, night=4))
def test_copies_dead_disks_and_clocks_that_are_set_back_make_no_claim_false(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    fleet = Fleet(tmp_path, chance)
    claims = Claims(fleet.hub)
    acked: dict[str, int] = {}
    try:
        fleet.hub.start()
        claims.start()
        for edge in fleet.edges[:2]:
            edge.start()
            acked |= fleet.send(edge, f"{edge.name}-first-", 0.2)
        assert claims.newest() == 0, "an edge that is expected has not spoken"
        wait_until(lambda: "expected_edge_missing" in claims.reasons, PATIENCE_S, "the hub to say so")
        stepping = fleet.edges[2]
        stepping.start()
        through = fleet.load(stepping, "stepping-")
        wait_until(claims.newest, PATIENCE_S, "a first claim")
        aside, log_id = lose_a_disk(fleet, acked)
        held = claims.newest()
        set_the_clock_back(fleet)
        copy_the_node(fleet, claims, acked)
        assert claims.newest() <= held + 2_000_000, "the lost disk holds the stream back"
        bring_the_disk_back(fleet, aside, log_id)
        acked |= through.finish()
        now_us = time.time_ns() // 1000
        try:
            wait_until(lambda: claims.newest() >= now_us, PATIENCE_S, "completeness")
        except AssertionError as error:
            error.add_note(str(claims.held_back_by))
            raise
        expected = sum(acked.values())
        wait_until(lambda: fleet.hub.table_rows() >= expected, PATIENCE_S, "the table")
    finally:
        fleet.stop()
    made = claims.finish()
    report = asyncio.run(audit(open_store(fleet.hub.store), "default", STREAM))
    assert report.agrees, report.problems
    assert report.total("log_doubled") == report.total("table_doubled") == report.total("holes") == 0
    counted = check_every_message(open_store(fleet.hub.store), acked)
    assert counted["rows"] == report.total("table_records") == report.total("records")
    stepped = check_claims(fleet, made)
    assert stepped > 0, "the clock was set back behind a claim"


# --- A clock that is set, at a hub and at an edge, makes no claim of completeness false and loses no row, on real
# processes: what was claimed is counted again by the clock of the test


HOUR_S = 3600.0
YEAR_S = 365.25 * 86_400


class ClocksClaim(NamedTuple):
    """An answer of the hub: everything up to a moment was there, so many records in all."""

    moment: str
    records: int


def claim_of(hub: DemoHub) -> ClocksClaim | None:
    answer = get_json(f"{hub.url}/v1/streams/{STREAM}/completeness")
    moment = answer["complete_up_to"]
    return None if moment is None else ClocksClaim(moment, hub.counts()[STREAM][0])


def held_back(hub: DemoHub) -> Any:
    return get_json(f"{hub.url}/v1/streams/{STREAM}/completeness")["held_back_by"]


def is_wrong(hub: DemoHub) -> bool:
    """Whether the hub says that it does not believe its clock, and claims nothing."""
    answer = get_json(f"{hub.url}/v1/streams/{STREAM}/completeness")
    held_back = answer["held_back_by"]
    return bool(held_back) and held_back[0]["reason"] == "hub_clock_wrong" and answer["complete_up_to"] is None


def clocks_weft(clock: SteppingClock, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
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


@pytest.mark.slow
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
    claims: list[ClocksClaim] = []
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
                refused = clocks_weft(
                    hub_clock, "hub", "retire", hub.config_path, fleet.edges[2].name, "--reason", "-", "--yes"
                )
                assert refused.returncode == 1
                assert (
                    "CLOCK: this machine's clock is 60.0 minutes"
                    in clocks_weft(hub_clock, "hub", "status", hub.config_path).stdout
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
