"""A node's name changes: refused over its log, done with `weft edge rename`, and found by the audit when it was not."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.error
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from examples.demo.fabric import free_port
from tests.support import forked
from tests.support.epochs import MemoryEpochs
from tests.support.processes import Node, Start, publish, weft
from tests.support.tokens import create_token, declare_in
from tests.support.waiting import PATIENCE_S, Patience, wait_until
from weft.edge_node.timing import clock_reader
from weft.hub_api.rights import Scope
from weft.output import Failed, Refused
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import NodeName
from weft.replication.events import LinkStatus
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.replication.source import LaneSnapshot, OfferedLane
from weft.storage.segment_log import LogSettings, SegmentLog

pytestmark = pytest.mark.processes

TOPIC = "plant/a/b/telemetry"
EDGE = """\
node: {node}
tenant: {tenant}
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry"}}, local: {{from: local, replicate: false}}}}
links: {links}
"""
HUB = """\
listen: 127.0.0.1:{port}
store: {store}
shards: 2
processes: {processes}
commit_interval: 20ms
tables: {{interval: 100ms}}
"""


class Fabric:
    """One edge's configuration and two hubs', in one folder."""

    def __init__(self, folder: Path, start: Start) -> None:
        self.folder, self._start = folder, start
        self.processes = 1
        """Of each hub."""
        self.ports = {"cloud": free_port(), "plant": free_port()}
        self.tokens: dict[str, str] = {}
        self.edge_yaml = folder / "edge.yaml"

    def name(self, node: str, tenant: str = "default", links: tuple[str, ...] = ("cloud",)) -> None:
        """Write the edge's configuration."""
        reported = {
            link: {
                "to": f"http://127.0.0.1:{self.ports[link]}",
                "retry_min": "50ms",
                "retry_max": "200ms",
                "hold_at_start": "200ms",
            }
            | ({"token_file": self.tokens[link]} if link in self.tokens else {})
            for link in links
        }
        self.edge_yaml.write_text(EDGE.format(node=node, tenant=tenant, links=json.dumps(reported)))

    def hub(self, link: str = "cloud", more: str = "") -> Node:
        path = self.folder / f"{link}.yaml"
        path.write_text(HUB.format(port=self.ports[link], store=self.store(link), processes=self.processes) + more)
        return self._start("hub", path)

    def edge(self) -> Node:
        return self._start("edge", self.edge_yaml)

    def store(self, link: str = "cloud") -> str:
        return str(self.folder / f"store-{link}")

    def run(self, payloads: list[str]) -> None:
        """A life of the node: it takes these in and is stopped, whatever its links do."""
        edge = self.edge()
        publish(edge.mqtt_port, TOPIC, payloads)
        assert edge.stop() == 0

    def rename(self, *more: str) -> Done:
        return command("edge", "rename", str(self.edge_yaml), "--yes", *more)

    def lanes(self, link: str = "cloud", tenant: str = "default") -> dict[str, tuple[int, dict[str, int]]]:
        """Edge -> records in the hub's log, and gaps by reason; the audit must be good."""
        report = json.loads(self.audit("--json", "--tenant", tenant, link=link, status=0).stdout)
        assert report["problems"] == []
        return {lane["edge"]: (lane["records"], lane["gaps"]) for lane in report["lanes"]}

    def holes(self, link: str = "cloud") -> dict[str, int]:
        """Edge -> numbers that the audit cannot explain; the edges that have some."""
        report = json.loads(self.audit("--json", link=link, status=0).stdout)
        return {lane["edge"]: lane["holes"] for lane in report["lanes"] if lane["holes"]}

    def audit(self, *more: str, link: str = "cloud", status: int) -> Done:
        found = command("audit", "telemetry", "--store", self.store(link), *more)
        assert found.returncode == status, found
        return found


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str) -> Done:
    """A command in this process, which takes a tenth of the time of one in its own."""
    result = weft(*arguments)
    if result.exception is None:
        return Done(result.return_value or 0, result.stdout, result.stderr)
    if not isinstance(result.exception, Failed | Refused):
        raise result.exception
    status = 2 if isinstance(result.exception, Refused) else 1
    return Done(status, result.stdout, f"{result.stderr}weft: {result.exception}")


@pytest.fixture
def fabric(tmp_path: Path, start: Start) -> Fabric:
    made = Fabric(tmp_path, start)
    made.name("press-1")
    return made


def numbered(first: int, end: int) -> list[str]:
    return [f"message {number}" for number in range(first, end)]


def records(hub: Node, tenant: str = "default") -> list[str]:
    try:
        found = hub.json(f"v1/streams/telemetry/records?limit=10000&tenant={tenant}")["records"]
    except urllib.error.HTTPError:
        # The hub knows the stream once something of it came.
        return []
    return sorted((record["payload"] for record in found), key=lambda payload: int(payload.split()[-1]))


def is_drained(edge: Node, link: str = "cloud") -> Callable[[], bool]:
    def look() -> bool:
        found = edge.json("status")["links"][link]
        return bool(found["state"] == "connected" and found["pending_records"] == 0 and found["records_acked"])

    return look


def all_rows(fabric: Fabric, link: str = "cloud") -> bool:
    report = json.loads(command("audit", "telemetry", "--store", fabric.store(link), "--json").stdout)
    return bool(report["lanes"]) and all(lane["records"] == lane["table_records"] for lane in report["lanes"])


# --- refused


@pytest.mark.parametrize(
    ("changed", "back"),
    [
        ({"node": "press-2"}, "`node: press-1`"),
        pytest.param({"node": "press-1", "tenant": "acme"}, "`tenant: default`", marks=pytest.mark.slow),
    ],
)
def test_another_name_over_a_log_is_refused_with_both_ways_out(
    fabric: Fabric, changed: Mapping[str, Any], back: str
) -> None:
    fabric.run(numbered(0, 3))
    fabric.name(**changed)
    checked = command("edge", "check", str(fabric.edge_yaml))
    run = forked.run(
        [sys.executable, "-m", "weft", "edge", "run", str(fabric.edge_yaml)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    for found in (Done(run.returncode, run.stdout, run.stderr), checked):
        # As for every mistake in a configuration, so that systemd does not start it again and again.
        assert found.returncode == 2
        assert f"{fabric.edge_yaml}:{1 if 'tenant' not in changed else 2}: " in found.stderr
        assert "belongs to default/press-1" in found.stderr
        assert f"Put {back} back, or give the log the new name: weft edge rename {fabric.edge_yaml}" in found.stderr
        assert len([line for line in found.stderr.splitlines() if line.startswith("weft: ")]) == 1
    status = weft("edge", "status", fabric.edge_yaml)
    shown = " ".join(status.output.split())
    assert "next start REFUSED: the log in" in shown
    assert f"weft edge rename {fabric.edge_yaml}" in shown
    assert json.loads(weft("edge", "status", fabric.edge_yaml, "--json").output)["owner"] == {
        "tenant": "default",
        "node": "press-1",
    }
    fabric.name("press-1")
    assert command("edge", "check", str(fabric.edge_yaml)).returncode == 0
    fabric.run(numbered(3, 4))


def test_the_units_do_not_start_again_what_a_name_stops() -> None:
    unit = (Path(__file__).parents[2] / "deploy/weft-edge.service").read_text()
    assert "RestartPreventExitStatus=2" in unit


# --- renamed


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_after_a_rename_nothing_is_there_twice_and_nothing_is_missing(fabric: Fabric, processes: int) -> None:
    fabric.processes = processes
    hub = fabric.hub()
    edge = fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(0, 50))
    wait_until(is_drained(edge))
    assert edge.stop() == 0
    # More while the hub does not answer: the rename delivers it under the old name.
    hub.kill()
    fabric.run(numbered(50, 70))
    fabric.name("press-2")
    hub = fabric.hub()
    done = fabric.rename("--json")
    assert done.returncode == 0, done
    assert json.loads(done.stdout) == {
        "renamed": True,
        "from": "default/press-1",
        "to": "default/press-2",
        "waiting": [],
        "all_records": False,
    }
    edge = fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(70, 100))
    wait_until(lambda: records(hub) == numbered(0, 100))
    wait_until(lambda: all_rows(fabric))
    assert fabric.lanes() == {"press-1": (70, {}), "press-2": (30, {"renamed": 70})}
    # What was taken in under the old name can still be read here.
    reported = weft("edge", "query", fabric.edge_yaml, "SELECT count(*) AS n FROM telemetry", "--json")
    assert json.loads(reported.output)["n"] == 100
    # To do it again changes nothing.
    edge.stop()
    again = fabric.rename()
    assert (again.returncode, again.stdout.rstrip()) == (
        0,
        f"the log in {fabric.folder}/data belongs to default/press-2 already: nothing was changed",
    )


@pytest.mark.slow
def test_a_log_renamed_to_another_tenant_and_back(fabric: Fabric) -> None:
    hub = fabric.hub()
    for at, tenant in enumerate(("default", "acme", "default")):
        fabric.name("press-1", tenant)
        if at:
            assert fabric.rename().returncode == 0
        edge = fabric.edge()
        publish(edge.mqtt_port, TOPIC, numbered(10 * at, 10 * at + 10))
        wait_until(lambda at=at, tenant=tenant: f"message {10 * at + 9}" in records(hub, tenant))  # type: ignore[misc]
        edge.stop()
    wait_until(lambda: all_rows(fabric))
    assert fabric.lanes() == {"press-1": (20, {"renamed": 10})}
    assert fabric.lanes(tenant="acme") == {"press-1": (10, {"renamed": 10})}
    assert records(hub) == numbered(0, 10) + numbered(20, 30)


@pytest.mark.slow
def test_records_that_no_hub_was_sent_take_the_new_name_without_asking_one(fabric: Fabric) -> None:
    """A node whose name was wrong from the first day: its hub never took it."""
    fabric.run(numbered(0, 10))
    fabric.name("press-2")
    done = fabric.rename()
    assert done.returncode == 0, done
    assert "all records in the log take the new name" in done.stdout
    # And if that name was wrong too.
    fabric.name("press-3")
    assert fabric.rename().returncode == 0
    hub, edge = fabric.hub(), fabric.edge()
    wait_until(lambda: len(records(hub)) == 10)
    edge.stop()
    assert fabric.lanes() == {"press-3": (10, {})}


@pytest.mark.slow
def test_a_rename_that_cannot_deliver_changes_nothing_and_says_what_waits(fabric: Fabric) -> None:
    hub, edge = fabric.hub(), fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(0, 10))
    wait_until(is_drained(edge))
    hub.kill()
    publish(edge.mqtt_port, TOPIC, numbered(10, 15))
    edge.stop()
    fabric.name("press-2")
    failed = fabric.rename("--wait", "500ms")
    assert failed.returncode == 1
    # The node does not know what a hub has that does not answer.
    assert "link cloud: 15 records of telemetry (http://127.0.0.1" in failed.stderr
    assert "Run this again when the links work" in failed.stderr
    assert f"weft log drop {fabric.edge_yaml} telemetry --all" in failed.stderr
    fabric.name("press-1")
    hub, edge = fabric.hub(), fabric.edge()
    wait_until(lambda: records(hub) == numbered(0, 15))


@pytest.mark.slow
def test_records_that_were_given_up_hold_up_no_rename(fabric: Fabric) -> None:
    hub, edge = fabric.hub(), fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(0, 10))
    wait_until(is_drained(edge))
    edge.stop()
    hub.kill()
    fabric.run(numbered(10, 15))
    assert weft("log", "drop", fabric.edge_yaml, "telemetry", "--all", "--yes").exception is None
    fabric.name("press-2")
    done = fabric.rename("--wait", "500ms")
    assert done.returncode == 0, done
    assert "link cloud: the hub has no notice of the lost records of telemetry (http://127" in done.stdout
    hub, edge = fabric.hub(), fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(15, 20))
    wait_until(lambda: len(records(hub)) == 15)
    wait_until(lambda: all_rows(fabric))
    assert fabric.lanes() == {"press-1": (10, {}), "press-2": (5, {"renamed": 10})}
    assert fabric.holes() == {"press-2": 5}, "the hub was told of no reason"


@pytest.mark.slow
def test_every_link_must_have_everything(fabric: Fabric) -> None:
    fabric.name("press-1", links=("cloud", "plant"))
    cloud, edge = fabric.hub(), fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(0, 10))
    wait_until(is_drained(edge))
    edge.stop()
    fabric.name("press-2", links=("cloud", "plant"))
    failed = fabric.rename("--wait", "500ms", "--json")
    assert failed.returncode == 1
    (waiting,) = json.loads(failed.stdout)["waiting"]
    assert (waiting["link"], waiting["stream"], waiting["records"]) == ("plant", "telemetry", 10)
    plant = fabric.hub("plant")
    assert fabric.rename().returncode == 0
    edge = fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(10, 20))
    for hub in (cloud, plant):
        wait_until(lambda hub=hub: records(hub) == numbered(0, 20))  # type: ignore[misc]


@pytest.mark.slow
def test_a_link_that_is_added_after_a_rename_begins_with_the_new_name(fabric: Fabric) -> None:
    hub, edge = fabric.hub(), fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(0, 10))
    wait_until(is_drained(edge))
    edge.stop()
    fabric.name("press-2")
    assert fabric.rename().returncode == 0
    fabric.name("press-2", links=("cloud", "plant"))
    plant, edge = fabric.hub("plant"), fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(10, 20))
    wait_until(lambda: records(plant) == numbered(10, 20))
    wait_until(lambda: all_rows(fabric, "plant"))
    assert fabric.lanes("plant") == {"press-2": (10, {})}
    assert fabric.holes("plant") == {"press-2": 10}, "this hub never had them under any name"
    assert records(hub) == numbered(0, 20)


@pytest.mark.slow
def test_a_hub_restored_before_the_rename_gets_again_what_the_log_has(fabric: Fabric) -> None:
    hub, edge = fabric.hub(), fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(0, 10))
    wait_until(is_drained(edge))
    edge.stop()
    hub.stop()
    Path(fabric.store()).rename(fabric.folder / "lost")
    fabric.name("press-2")
    hub = fabric.hub()
    assert fabric.rename().returncode == 0
    wait_until(lambda: all_rows(fabric))
    assert fabric.lanes() == {"press-1": (10, {})}


@pytest.mark.slow
def test_a_node_without_links_is_renamed(fabric: Fabric) -> None:
    fabric.name("press-1", links=())
    fabric.run(numbered(0, 5))
    fabric.name("press-2", links=())
    assert fabric.rename().returncode == 0
    fabric.run(numbered(5, 6))
    # No hub has any of it, so a link that comes now carries all of it.
    fabric.name("press-2")
    hub, _ = fabric.hub(), fabric.edge()
    wait_until(lambda: records(hub) == numbered(0, 6))
    assert fabric.lanes() == {"press-2": (6, {})}


def test_a_node_that_runs_is_not_renamed(fabric: Fabric) -> None:
    edge = fabric.edge()
    fabric.name("press-2")
    failed = fabric.rename()
    assert failed.returncode == 1
    assert "Stop it first (systemctl stop weft-edge)" in failed.stderr
    publish(edge.mqtt_port, TOPIC, numbered(0, 1))
    assert edge.stop() == 0


def test_a_rename_asks_first(fabric: Fabric) -> None:
    fabric.run(numbered(0, 2))
    fabric.name("press-2")
    asked = weft("edge", "rename", fabric.edge_yaml, answer="n\n")
    assert "rename default/press-1 to default/press-2? No hub was sent anything" in asked.output
    assert asked.exception is not None
    fabric.name("press-1")
    fabric.run(numbered(2, 3))


def test_a_node_that_never_ran_needs_no_rename(fabric: Fabric) -> None:
    failed = fabric.rename()
    assert (failed.returncode, "holds no log" in failed.stderr) == (1, True)
    assert fabric.rename("--wait", "soon").returncode == 2


@pytest.mark.slow
def test_the_old_token_delivers_and_a_token_of_the_new_name_is_told_apart(fabric: Fabric) -> None:
    tokens = fabric.folder / "tokens"
    for edge_name in ("press-1", "press-2"):
        (fabric.folder / edge_name).write_text(create_token(tokens, edge_name, Scope.EDGE, edge=edge_name) + "\n")
    declare_in(fabric.store(), tokens)
    fabric.tokens["cloud"] = str(fabric.folder / "press-1")
    fabric.name("press-1")
    fabric.hub()
    edge = fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(0, 10))
    wait_until(is_drained(edge))
    edge.stop()
    fabric.tokens["cloud"] = str(fabric.folder / "press-2")
    fabric.name("press-2")
    patience = Patience(20)
    failed = fabric.rename()
    # The hub said no: nothing is waited for.
    assert not patience.is_over()
    assert failed.returncode == 1
    assert "their tokens must be those of default/press-1" in failed.stderr
    (fabric.folder / "press-2").rename(fabric.folder / "new")
    (fabric.folder / "press-2").write_bytes((fabric.folder / "press-1").read_bytes())
    assert fabric.rename().returncode == 0
    (fabric.folder / "new").rename(fabric.folder / "press-2")
    edge = fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(10, 12))
    expected = {"press-1": (10, {}), "press-2": (2, {"renamed": 10})}
    wait_until(lambda: fabric.lanes() == expected)


# --- what went wrong before


class _WholeLog:
    """All of a log's telemetry, as links offered it before a log knew whose it is."""

    def __init__(self, log: SegmentLog) -> None:
        self._log, self._stream = log, log.stream("telemetry")

    def lanes(self) -> list[OfferedLane]:
        return [OfferedLane(self._stream, "telemetry", ("plant/{line}/{machine}/telemetry",))]

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        now = self._log.snapshot(self._stream)
        state = LaneSnapshot(now.held, now.next_seq, [], Mark(time.time_ns(), now.next_seq))
        return dict.fromkeys(lanes, state)

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        return self._log.read(lane, seq, bytes_max)

    def high_watermark(self, hub: str, lane: int) -> int:
        return self._log.next_seq(lane)

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        pass

    def released(self, lane: int, ranges: object) -> None:
        pass

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        return self._log.listen(lambda: callback(None))


async def send_all_as(fabric: Fabric, name: NodeName) -> None:
    """What a node with another name over the same log once did."""
    log = SegmentLog.open(
        str(fabric.folder / "data"),
        LogSettings(segment_bytes=1 << 20),
        wall_clock=time.time_ns,
        clock_reading=clock_reader(),
        random_bits=lambda bits: 7,
        post=lambda deliver: deliver(),
        start_writer=False,
    )
    status = LinkStatus("cloud")
    identity = LinkIdentity(*name, log.log_id, "test")
    settings = LinkSettings((f"http://127.0.0.1:{fabric.ports['cloud']}",))
    link = asyncio.create_task(run_link(_WholeLog(log), identity, settings, MemoryEpochs(), status))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while status.records_acked < log.next_seq(log.stream("telemetry")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        link.cancel()
        await asyncio.gather(link, return_exceptions=True)
        log.close()


@pytest.mark.slow
def test_the_audit_finds_what_a_renamed_node_sent_twice(fabric: Fabric) -> None:
    fabric.hub()
    edge = fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(0, 40))
    wait_until(is_drained(edge))
    edge.stop()
    wait_until(lambda: all_rows(fabric))
    fabric.audit(status=0)
    asyncio.run(send_all_as(fabric, NodeName("default", "press-2")))
    wait_until(lambda: all_rows(fabric))
    text = fabric.audit(status=1).stdout
    assert "40 records of this log are also stored under the name default/press-2" in text
    assert "good" not in text
    asyncio.run(send_all_as(fabric, NodeName("acme", "press-1")))
    assert "stored under the name acme/press-1" in fabric.audit(status=1).stdout
