"""A disk that is lost with messages that no hub has is named as an open gap, on real processes: by the API, the audit,
the trace, the status and the log, until it comes back. A node that is stopped or renamed in order leaves none.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import DemoHub, get_json
from tests.end_to_end.storms import Fabric, HubNode, running
from tests.end_to_end.test_claims import records, weft
from tests.end_to_end.test_kills import STREAM, Load, check_every_message, make_edge
from tests.support import forked
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.proofs.backup.backup import make_backup, restore
from weft.proofs.backup.view import open_backup
from weft.proofs.verify import verify
from weft.protocols.segment import GapReason
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store
from weft.storage.presence import decode_entry

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PATIENCE_S = 30.0


class Site:
    """A hub and an edge node that sends marks each second."""

    def __init__(self, folder: Path) -> None:
        self.hub = DemoHub(folder)
        self.hub.config_path.write_text(self.hub.config_path.read_text() + "mark_interval: 1s\n")
        self.edge = make_edge(folder, self.hub)
        link = f"to: {self.hub.url}\n    retry_min: 50ms\n    retry_max: 500ms\n    mark_interval: 1s"
        text = self.edge.config_path.read_text()
        self.edge.config_path.write_text(text.replace(f"to: {self.hub.url}", link))

    def send(self, prefix: str) -> dict[str, int]:
        """Publish for some time; every message is acknowledged when this returns."""
        load = Load(self.edge.mqtt_port, options=["--devices", "1", "--rate", "200", "--prefix", prefix])
        try:
            before = records(self.edge)
            wait_until(lambda: records(self.edge) > before + 20, PATIENCE_S, "messages")
            return load.finish()
        finally:
            load.kill()

    def completeness(self) -> Any:
        return get_json(f"{self.hub.url}/v1/streams/{STREAM}/completeness")

    def claim(self) -> str:
        return str(self.completeness()["complete_up_to"] or "")

    def wait_for_claim(self) -> Any:
        """Wait until the stream is said to be complete up to this moment, and return the answer."""
        now = stamp()
        wait_until(lambda: self.claim() >= now, PATIENCE_S, "completeness")
        return self.completeness()

    def wait_for_rows(self, acked: dict[str, int]) -> None:
        wait_until(lambda: self.hub.table_rows() >= sum(acked.values()), PATIENCE_S, "the table")

    def stop(self) -> None:
        for service in (self.edge, self.hub):
            service.stop()


def stamp() -> str:
    """Now, as the hub writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + ".999999999Z"


def recount(site: Site) -> dict[str, set[int]]:
    """The messages in the table by device, counted without the hub."""
    from deltalake import DeltaTable

    uri, options = open_store(site.hub.store).location(table_key("default", STREAM))
    rows = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["device", "payload"]).to_pylist()
    found: dict[str, set[int]] = {}
    for row in rows:
        found.setdefault(row["device"], set()).add(int(row["payload"]))
    return found


def test_a_lost_disk_is_named_until_it_comes_back(tmp_path: Path) -> None:
    site = Site(tmp_path)
    hub, edge = site.hub, site.edge
    try:
        hub.start()
        edge.start()
        acked = site.send("first-")
        wait_until(lambda: hub.records() >= sum(acked.values()), PATIENCE_S, "the hub")
        site.wait_for_claim()
        log_id, delivered = str(edge.status()["log_id"]), hub.records()
        hub.kill()  # the link is cut
        before = stamp()
        lost = site.send("lost-")
        after = stamp()
        edge.kill()
        disk = Path(edge.data_dir)
        aside = disk.rename(disk.with_name("kept-aside"))
        edge.start()
        hub.start()
        acked |= site.send("after-")
        assert site.claim() < before, "the lost disk holds the stream back"

        said = weft("hub", "retire", hub.config_path, edge.name, "--log", log_id, "--reason", "disk lost", "--yes")
        assert "0 records count as lost" in said
        assert "open gap in" in said
        answer = site.wait_for_claim()
        [gap] = answer["open_gaps"]
        assert (gap["edge"], gap["log"], gap["first"], gap["records"]) == (edge.name, log_id, delivered, None)
        assert gap["since"] <= before, "the lost messages were taken in between its two moments"
        assert gap["until"] >= after[:19]
        assert [lane["edge"] for lane in answer["covers"]] == [edge.name]
        site.wait_for_rows(acked)
        found = recount(site)
        assert {name: found[name] for name in acked} == {name: set(range(count)) for name, count in acked.items()}
        assert not lost.keys() & found.keys(), "the hub lacks what it names"

        reported = weft("audit", STREAM, "--store", hub.store)
        assert f"OPEN GAP: {edge.name}/{log_id}, from " in reported
        assert "good" not in reported
        status = weft("hub", "status", hub.config_path)
        assert re.search(rf"^open gap: edge\t.*\ndefault/{edge.name}\t{log_id}\t{STREAM}\t{delivered}\t", status, re.M)
        record = f"{edge.name}/{log_id}/{delivered}"
        traced = forked.run(
            [sys.executable, "-m", "weft", "trace", "--store", hub.store, "--record", record],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert traced.returncode == 1
        assert "OPEN GAP" in traced.stdout
        wait_until(lambda: "is retired. Open gap: " in hub.log_path.read_text(), PATIENCE_S, "the hub's log")

        weft("edge", "import", edge.config_path, aside)
        wait_until(lambda: site.completeness()["open_gaps"] == [], PATIENCE_S, "the open gap to close")
        acked |= lost
        site.wait_for_rows(acked)
    finally:
        site.stop()
    counted = check_every_message(open_store(hub.store), acked)
    assert counted["rows"] == sum(acked.values())
    report = asyncio.run(audit(open_store(hub.store), "default", STREAM))
    assert (report.agrees, report.open_gaps) == (True, [])


def test_a_node_that_stops_in_order_and_one_that_is_renamed_leave_nothing_open(tmp_path: Path) -> None:
    site = Site(tmp_path)
    hub, edge = site.hub, site.edge
    try:
        hub.start()
        edge.start()
        acked = site.send("first-")
        edge.stop()
        text = edge.config_path.read_text()
        edge.config_path.write_text(text.replace(f"node: {edge.name}", "node: edge-renamed"))
        weft("edge", "rename", edge.config_path, "--yes")
        edge.start()
        acked |= site.send("renamed-")
        answer = site.wait_for_claim()
        assert [lane["edge"] for lane in answer["covers"]] == ["edge-renamed"], "nobody had to retire the former name"
        assert {each["reason"] for each in answer["held_back_by"]} <= {"late"}
        assert answer["open_gaps"] == []
        log_id = str(edge.status()["log_id"])
        edge.stop()
        # The disk is taken out, and the node begins with an empty one.
        disk = Path(edge.data_dir)
        disk.rename(disk.with_name("kept-aside"))
        edge.start()
        acked |= site.send("empty-")
        said = weft("hub", "retire", hub.config_path, "edge-renamed", "--log", log_id, "--reason", "new disk", "--yes")
        assert "open gap" not in said
        answer = site.wait_for_claim()
        assert answer["open_gaps"] == []
        lanes = {lane["log"]: lane for lane in answer["lanes"] if lane["edge"] == "edge-renamed"}
        assert [gap["reason"] for gap in lanes[log_id]["gaps"]] == [GapReason.RENAMED.name.lower()]
        site.wait_for_rows(acked)
        names = (hub.config_path, "edge-renamed", "--log", log_id)
        said = weft("hub", "retire", *names, "--reason", "it ran", "--missing", "unknown", "--yes")
        assert "open gap" in said
        edge.kill()
    finally:
        site.stop()
    counted = check_every_message(open_store(hub.store), acked)
    assert counted["rows"] == sum(acked.values())


# --- A store that is away for some seconds, is restored, or is another one, under hubs and edges that run: every
# message that a device got an acknowledgement for is in the table once, and no hub acknowledges for another
# cluster


AWAY_S = 6.0
"""Longer than a shard tries before it sends its edges to other nodes."""


def readiness(hub: HubNode) -> int:
    """The status of the answer of ``/readyz``."""
    try:
        with urllib.request.urlopen(f"{hub.url}/readyz", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def has_ended(hub: HubNode) -> bool:
    assert hub._process is not None
    return hub._process.poll() is not None


def acknowledged(fabric: Fabric) -> float:
    """The moment of the newest acknowledgement of a hub."""
    return max(fabric.link(edge)["last_ack"] or 0.0 for edge in fabric.edges)


def test_a_folder_that_is_away_under_three_hosts_stays_empty_and_all_go_on_when_it_is_back(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with running(Fabric(tmp_path, nodes=3)) as fabric:
        fabric.until_all_linked()
        wait_until(lambda: fabric.hubs[0].table_rows() > 0, 60, "rows in the table")
        aside = root.rename(tmp_path / "aside")
        since = time.time()
        while time.time() - since < AWAY_S:
            assert [readiness(hub) for hub in fabric.hubs] == [503, 503, 503]
            assert not root.exists()
        # What was under way when the folder went may have come to its edge a moment later.
        assert acknowledged(fabric) < since + 1.0
        aside.rename(root)
        back = time.time()
        for hub in fabric.hubs:
            wait_until(lambda hub=hub: readiness(hub) == 200, 60, f"{hub.name} to be ready")  # type: ignore[misc]
        ready_s = time.time() - back
        served_s = max(fabric.seconds_to_acks(edge, back, 60) for edge in fabric.edges)
        print(f"ready after {ready_s:.1f} s, all edges served after {served_s:.1f} s")
        logs = "".join(hub.log_path.read_text() for hub in fabric.hubs)
        assert "restore it from a backup" not in logs
        assert "the store is back in its place, after" in logs
        fabric.finish()
    made = [path for path in (root / "tables").rglob("00000000000000000000.json") if "quarantine" not in str(path)]
    assert len(made) == 1, "one table was made, once"


@pytest.mark.parametrize("what", ["restored from a backup", "another hub's"])
def test_a_hub_that_was_forgotten_gives_the_store_in_its_place_nothing(what: str, tmp_path: Path) -> None:
    root, place = tmp_path / "store", open_store(str(tmp_path / "backup"))
    fabric = Fabric(tmp_path, nodes=2)
    forgotten, other = fabric.hubs
    try:
        for service in (forgotten, *fabric.edges):
            service.start()
        for at, edge in enumerate(fabric.edges):
            options = ["--devices", "2", "--rate", "50", "--prefix", f"edge-{at}-"]
            fabric._loads.append(Load(edge.mqtt_port, options=options))
        wait_until(lambda: forgotten.table_rows() > 0, 60, "rows in the table")
        asyncio.run(make_backup(open_store(str(root)), place, clock=time.time_ns, note=lambda _: None))
        rows = forgotten.table_rows()
        wait_until(lambda: forgotten.table_rows() > rows, 60, "rows that the backup lacks")
        former = forgotten.status()["cluster_id"]
        root.rename(tmp_path / "lost")
        if what == "restored from a backup":
            asyncio.run(_restored(tmp_path / "backup", root))
        other.start()
        wait_until(lambda: has_ended(forgotten), 60, "the forgotten hub to end")
        assert "another store is in the place of this one" in forgotten.log_path.read_text()
        cluster = other.status()["cluster_id"]
        assert (cluster == former) == (what == "restored from a backup")
        wait_until(lambda: _there(root) == [other.url], 60, "the entry of the new one, and no other")
        forgotten.start()  # as its unit does: it is a node of the store that is there now
        assert forgotten.status()["cluster_id"] == cluster
        fabric.finish()
    finally:
        fabric.stop()
    report = asyncio.run(verify(open_store(str(root))))
    assert report.is_whole, report.findings
    assert not report.lost


def _there(root: Path) -> list[str]:
    entries = [decode_entry(path.read_bytes()) for path in (root / "nodes").glob("*")]
    return [entry.url for entry in entries if entry is not None]


async def _restored(backup: Path, root: Path) -> None:
    view = await open_backup(open_store(str(backup)))
    assert view is not None
    await restore(view, open_store(str(root)), clock=time.time_ns, note=lambda _: None)
