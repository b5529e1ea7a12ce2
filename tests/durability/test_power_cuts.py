"""Power cuts of real processes on a disk whose unsynced writes can be lost: what was acknowledged is there."""

from __future__ import annotations

import asyncio
import bisect
import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.fabric import DemoHub
from tests.durability.devices import (
    STREAM,
    WINDOW,
    Device,
    LoadedNode,
    check_all_there,
    check_unrouted_there,
    open_after,
    puback_ids,
    read_stream,
)
from tests.durability.recording import Event, Kind, Replay, build_recorder, read_events, recorded, write_out
from tests.storage.fakes import FakeFileSystem
from tests.support.mqtt_client import BlockingPaho
from tests.support.silence import silent_logs
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S, USUAL_S, Patience, wait_until
from weft.proofs.audit.audit import audit
from weft.proofs.audit.report import AuditReport
from weft.storage.filesystem import FileSystem, OSFileSystem
from weft.storage.object_store import open_store

pytestmark = pytest.mark.processes


# --- A real node under real load on a disk whose unsynced writes can be lost: what was acknowledged is there
#
# The node runs with a library that writes down every call it makes below its data directory (``disk_recorder.c``).
# Then the power is cut at any call of that recording: of what was not synced then, a random part is left. The log is
# opened on that, and a few times a whole node with its sessions and retained messages.


SECONDS = SLICE.amount(ci=1.5, night=6.0)
"""How long the node is under load. Each cut reads all that it has logged."""
LOG_CUTS = SLICE.amount(ci=80, night=400)
RATES = (8000, 900, 90)
"""Messages a second of each device."""
LIVES = SLICE.amount(ci=2, night=10)
NODE_CUTS = SLICE.amount(ci=3, night=10)


class Acknowledged:
    """What each device had been told at any event of the recording."""

    def __init__(self, events: list[Event], devices: list[Device]) -> None:
        streams: dict[int, bytes] = defaultdict(bytes)
        self._at: dict[int, list[int]] = {device.port: [] for device in devices}
        for index, event in enumerate(events):
            if event.kind is Kind.SENT and event.inode in self._at:
                before = max(0, len(streams[event.inode]) // 4 - 1)
                streams[event.inode] += event.text1
                self._at[event.inode] += [index] * (len(streams[event.inode]) // 4 - 1 - before)
        for device in devices:
            ids = puback_ids(streams[device.port][4:])  # after CONNACK
            assert ids == [number % 65_535 + 1 for number in range(len(ids))]
            # SIGKILL may come between an answer and its record: one more answer of a window may have been seen.
            assert len(ids) >= device.acked - WINDOW, "the device was told more than was recorded"

    def count(self, device: Device, cut: int) -> int:
        """Messages of the device that were acknowledged before event number ``cut``."""
        return bisect.bisect_left(self._at[device.port], cut)

    def counts(self, devices: list[Device], cut: int) -> dict[str, int]:
        """The same of several devices, by name."""
        return {device.name: self.count(device, cut) for device in devices}


def check_on(disk: FileSystem, folder: Path, devices: list[Device], acked: dict[str, int]) -> None:
    log = open_after(disk, folder)
    check_all_there(read_stream(log), devices, acked)
    check_unrouted_there(log, devices, acked)
    log._lock.close()


def check_node(node: LoadedNode, devices: list[Device], acked: dict[str, int]) -> None:
    """What clients of the node see once it runs again: the session, its alarms, the retained states."""
    watcher = BlockingPaho("watcher", clean_session=False)
    reader = BlockingPaho("reader")
    for client in (watcher, reader):
        assert client.connect(node.mqtt) == "Success"
    reader.subscribe(("state/#", 1))
    assert watcher.session_present, "a session that was acknowledged is gone"
    heard, retained = set[tuple[str, bytes]](), dict[str, bytes]()
    for device in devices:
        reported = device.sent[: acked[device.name]]
        alarms = [message for message in reported if message.topic.startswith("alarm/")]
        states = [message for message in reported if message.topic.startswith("state/")]
        for alarm in alarms:
            while alarm[:2] not in heard:
                message = watcher.message()
                heard.add((message.topic, message.payload))
        if states:
            while f"state/{device.name}" not in retained:
                message = reader.message()
                retained[message.topic] = message.payload
            held = int(retained[f"state/{device.name}"])
            assert held >= int(states[-1].payload), "a retained message is older than the last acknowledged one"
            assert b"%d" % held in {message.payload for message in device.sent if message.retain}
    watcher.close()
    reader.close()


def subscribe(node: LoadedNode) -> None:
    """A session that outlives its client."""
    watcher = BlockingPaho("watcher", clean_session=False)
    assert watcher.connect(node.mqtt) == "Success"
    watcher.subscribe(("alarm/+", 1))
    watcher.close()


def live(node: LoadedNode, seconds: float, label: str = "") -> list[Device]:
    """Load for a while, then SIGKILL."""
    devices = [Device(f"{label}{rate}", node.mqtt, rate=rate) for rate in RATES]
    for device in devices:
        device.start()
    ends, patience = time.monotonic() + seconds, Patience(seconds + USUAL_S)
    while time.monotonic() < ends or not all(device.acked for device in devices):
        assert not patience.is_over(), "a device was told nothing"
        time.sleep(0.01)
    node.kill()
    for device in devices:
        device.join()
    return devices


def finds_lost_syncs(events: list[Event], tree: Path, devices: list[Device], acknowledged: Acknowledged) -> bool:
    """Whether the same recording without its syncs is noticed: otherwise nothing here proves anything."""
    replay = Replay(tree)
    for event in events:
        if event.kind is not Kind.SYNC_END:
            replay.apply(event)
    acked = acknowledged.counts(devices, len(events))
    try:
        for seed in range(5):
            check_on(replay.power_cut(random.Random(seed)), tree, devices, acked)
    except AssertionError:
        return True
    return False


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Path]:
    library = build_recorder(tmp_path)  # first: where this skips, nothing after the yield would run
    with silent_logs(logging.WARNING):  # of torn tails, by the hundred
        yield library


@pytest.mark.search
@pytest.mark.timeout(60 + 30 * SECONDS + 2 * LOG_CUTS + 20 * NODE_CUTS)
def test_what_a_node_acknowledged_survives_a_power_cut_at_any_call(tmp_path: Path, recorder: Path) -> None:
    tree, journal = tmp_path / "data", tmp_path / "journal"
    tree.mkdir()
    chance = random.Random(SLICE.seed)
    cut_disks: list[tuple[int, FakeFileSystem]] = []
    with LoadedNode(tmp_path, tree) as node:
        node.start(recorded(recorder, tree, journal))
        subscribe(node)
        watching = len(read_events(journal))
        devices = live(node, SECONDS)
        events = read_events(journal)
        acknowledged = Acknowledged(events, devices)
        cuts = Counter(chance.randint(0, len(events)) for _ in range(LOG_CUTS))
        for_nodes = {*chance.sample(range(watching, len(events)), NODE_CUTS - 1), len(events)}
        replay = Replay(tree)
        for at in range(len(events) + 1):
            acked = acknowledged.counts(devices, at) if at in cuts else {}
            for _ in range(cuts[at]):
                check_on(replay.power_cut(chance), tree, devices, acked)
            if at in for_nodes:
                cut_disks.append((at, replay.power_cut(chance)))
            if at < len(events):
                replay.apply(events[at])
        assert finds_lost_syncs(events, tree, devices, acknowledged)
        for at, disk in cut_disks:
            write_out(disk, tree)
            acked = acknowledged.counts(devices, at)
            node.start()
            check_node(node, devices, acked)
            node.kill()
            check_on(OSFileSystem(), tree, devices, acked)
    total = {device.name: device.acked for device in devices}
    print(f"{len(events)} calls and answers recorded, {LOG_CUTS} + {NODE_CUTS} power cuts, acknowledged: {total}")


@pytest.mark.search
@pytest.mark.timeout(120 + 30 * LIVES)
def test_power_cuts_in_a_row_on_one_disk(tmp_path: Path, recorder: Path) -> None:
    tree = tmp_path / "data"
    tree.mkdir()
    chance = random.Random(SLICE.seed)
    disk: FakeFileSystem | None = None
    devices: list[Device] = []
    acked: dict[str, int] = {}
    with LoadedNode(tmp_path, tree) as node:
        for life in range(LIVES):
            journal = tmp_path / f"journal-{life}"
            node.start(recorded(recorder, tree, journal))
            if life == 0:
                subscribe(node)
            first = len(read_events(journal)) if life == 0 else 0
            new = live(node, 1.0, f"life{life}-")
            events = read_events(journal)
            acknowledged = Acknowledged(events, new)
            cut = chance.randint(first, len(events))
            replay = Replay(tree, disk)
            for event in events[:cut]:
                replay.apply(event)
            disk = replay.power_cut(chance)
            devices += new
            acked |= acknowledged.counts(new, cut)
            write_out(disk, tree)
        check_on(OSFileSystem(), tree, devices, acked)
        node.start()
        check_node(node, devices, acked)
    print(f"{LIVES} lives, acknowledged: {acked}")


# --- A real hub on a directory whose unsynced writes can be lost: what it acknowledged to an edge is in its store


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
