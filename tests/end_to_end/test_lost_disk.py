"""A disk that is lost with messages that no hub has is named as an open gap, on real processes: by the API, the audit,
the trace, the status and the log, until it comes back. A node that is stopped or renamed in order leaves none."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import DemoHub, get_json
from tests.end_to_end.test_claims import records, weft
from tests.end_to_end.test_kills import STREAM, Load, check_every_message, make_edge
from tests.support import forked
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.protocols.segment import GapReason
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store

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
