"""A real hub on a directory whose unsynced writes can be lost: what it acknowledged to an edge is in its store."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from examples.demo.fabric import DemoHub
from tests.durability.devices import Device
from tests.durability.nodes import STREAM, LoadedNode
from tests.durability.recording import Replay, build_recorder, read_events, recorded, write_out
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S, wait_until
from weft.proofs.audit.audit import audit
from weft.proofs.audit.report import AuditReport
from weft.storage.object_store import open_store

pytestmark = pytest.mark.processes
LOOKS = 8
"""Number of times that the edge's acknowledgements are noted, some tenths of a second apart."""
CUTS = SLICE.amount(ci=20, night=200)


def start_recorded(hub: DemoHub, environment: dict[str, str], patch: pytest.MonkeyPatch) -> None:
    with patch.context() as inherited:
        for name in ("LD_PRELOAD", "WEFT_RECORD_TREE", "WEFT_RECORD_JOURNAL"):
            inherited.setenv(name, environment[name])
        hub.start()


def reported(node: LoadedNode) -> int:
    """Records of the stream that the hub has acknowledged to the edge."""
    return int(node.status()["links"]["cloud"]["records_acked"])


def look_into(store: Path) -> AuditReport:
    return asyncio.run(audit(open_store(str(store)), "default", STREAM))


@pytest.mark.search
@pytest.mark.timeout(120 + 5 * CUTS)
def test_what_a_hub_acknowledged_survives_a_power_cut_at_any_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, journal = build_recorder(tmp_path), tmp_path / "journal"
    hub = DemoHub(tmp_path)
    # Tables are made again from the log, which is what is looked at here.
    hub.config_path.write_text(hub.config_path.read_text().replace("tables: {interval: 1s}", "tables: null"))
    store = Path(hub.store)
    store.mkdir()
    links = f"links:\n  cloud: {{to: {hub.url}, retry_min: 50ms, retry_max: 200ms}}\n"
    chance = random.Random(SLICE.seed)
    try:
        with LoadedNode(tmp_path, tmp_path / "data", links=links) as node:
            start_recorded(hub, recorded(library, store, journal), monkeypatch)
            node.start()
            device = Device("press", node.mqtt, rate=3000)
            device.start()
            looks = []
            for _ in range(LOOKS):
                time.sleep(0.4)
                records = reported(node)
                looks.append((len(read_events(journal)), records))
            assert looks[-1][1] > 0
            hub.kill()
            events = read_events(journal)
            places = [chance.randint(looks[0][0], len(events)) for _ in range(CUTS - 1)]
            cuts = sorted([*places, len(events)])
            replay, done = Replay(store), 0
            for cut in cuts:
                for event in events[done:cut]:
                    replay.apply(event)
                done = cut
                write_out(replay.power_cut(chance), store)
                report = look_into(store)
                assert report.total("log_doubled") == report.total("holes") == 0
                assert not any(lane.gaps for lane in report.lanes)
                assert report.total("records") >= max(records for at, records in looks if at <= cut)
            # On the last of these disks the hub continues, and the edge with it.
            hub.start()
            device.quit.set()
            device.join(PATIENCE_S)
            end = node.status()["streams"][STREAM]["durable_end"]
            wait_until(lambda: hub.records() == end, what=lambda: f"{hub.records()} of {end} records at the hub")
    finally:
        hub.stop()
    report = look_into(store)
    assert report.total("records") == end
    assert report.total("log_doubled") == report.total("holes") == 0
    print(f"{len(events)} calls recorded, {CUTS} power cuts, {looks[-1][1]} records acknowledged before, {end} in all")
