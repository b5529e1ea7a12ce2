"""A store that is away for some seconds, is restored, or is another one, under hubs and edges that run: every message
that a device got an acknowledgement for is in the table once, and no hub acknowledges for another cluster."""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.end_to_end.storms import Fabric, HubNode, running
from tests.end_to_end.test_kills import Load
from tests.support.waiting import wait_until
from weft.proofs.backup.backup import make_backup, restore
from weft.proofs.backup.view import open_backup
from weft.proofs.verify import verify
from weft.storage.object_store import open_store
from weft.storage.presence import decode_entry

pytestmark = [pytest.mark.slow, pytest.mark.processes]
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
