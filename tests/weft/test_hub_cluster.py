"""``weft hub retire``, ``adopt`` and ``finalize`` on a store that no node runs on."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import time
from pathlib import Path
from typing import Literal

import click
import msgspec
import pytest
from msgspec import UNSET

from examples.demo.fabric import free_port
from tests.cloud_hub.fabric import make_batch
from tests.cloud_hub.facts.test_hub import SOON, declare, token
from tests.cloud_hub.live import EdgeLog, running_hub
from tests.cloud_hub.tables.logs import LogWriter, Run
from tests.cloud_hub.test_administration import ADMIN
from tests.support.epochs import MemoryEpochs
from tests.support.processes import Start, weft
from tests.support.waiting import wait_until
from weft.commands import hub_status
from weft.commands.running import RunningHub
from weft.hub_api.edges import (
    CopyOfEdge,
    EdgeOfHub,
    EdgesAnswer,
    LossesAnswer,
    LossesOfEdge,
    LossOfEdge,
    PairOfEdge,
    TimeAlone,
)
from weft.hub_api.rights import Scope, role_grants
from weft.hub_api.shards import DrainOfNode, DrainsAnswer
from weft.hub_api.status import (
    ClockOfNode,
    ClusterLogPosition,
    IcebergOfNode,
    LatestOfNode,
    LinkOfProcess,
    PeerProcess,
    QualityOfNode,
    QualityRuleOfNode,
    StatusAnswer,
    TableOfNode,
    TenantAtQuota,
    TroublesAnswer,
)
from weft.output import Failed, Refused
from weft.protocols.lane import Lane
from weft.protocols.link import Clock
from weft.protocols.shard.placement import shard_of
from weft.replication.events import LinkStatus
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.storage import hub_keys
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import NODE, ClusterLog
from weft.storage.object_store import open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.presence import Intake, NodeEntry

LANE = Lane("default", "press-1", 7, "telemetry")


def test_an_edge_is_retired_and_adopted_on_its_store(tmp_path: Path) -> None:
    config = tmp_path / "hub.yaml"
    config.write_text(f"store: {tmp_path / 'store'}\nshards: 2\n")

    async def prepare() -> None:
        store = open_store(str(tmp_path / "store"))
        logs = await LogWriter.open(store)
        await logs.append(shard_of(LANE.tenant, LANE.edge, 2), Run(LANE, 0, 3))

    async def counts() -> bool:
        store = open_store(str(tmp_path / "store"))
        log = ShardLog(store, await open_cluster(store, None), shard_of(LANE.tenant, LANE.edge, 2))
        return (await log.load()).lanes[LANE].counts

    asyncio.run(prepare())
    unknown = weft("hub", "retire", config, "press-9", "--reason", "gone", "--yes")
    assert unknown.exit_code == 1
    assert "knows no such lane of edge default/press-9" in str(unknown.exception)
    wrong = weft("hub", "retire", config, "press-1", "--log", "0000000000000001", "--reason", "gone", "--yes")
    assert "it has logs 0000000000000007" in str(wrong.exception)
    done = weft("hub", "retire", config, "press-1", "--reason", "gone", "--yes")
    first, gap = done.output.splitlines()
    assert first == "retired 1 lanes of default/press-1; 0 records count as lost"
    assert "open gap in telemetry: press-1/0000000000000007, from the beginning to " in gap
    assert "records from seq 3 on that its edge never delivered may be missing" in gap
    known = weft("hub", "retire", config, "press-1", "--reason", "all delivered", "--missing", "nothing", "--yes")
    assert known.output == "retired 1 lanes of default/press-1; 0 records count as lost\n"
    assert not asyncio.run(counts())
    assert weft("hub", "adopt", config, "press-1", "--yes").output == "adopted 1 lanes of default/press-1\n"
    assert asyncio.run(counts())
    assert (
        weft("hub", "finalize", config, "--yes").output
        == "the cluster is at level 4 already, the level of this release\n"
    )


@pytest.mark.parametrize(
    ("command", "done"),
    [
        (("retire", "press-1", "--reason", "gone"), "nothing was retired"),
        (("adopt", "press-1"), "nothing was adopted"),
        (("finalize",), "nothing was changed"),
        (("stream", "delete", "telemetry", "--reason", "over"), "nothing was deleted"),
        (("skip", "telemetry", "--from", "1", "--to", "2", "--reason", "bad"), "nothing was skipped"),
    ],
)
def test_what_cannot_be_taken_back_is_asked_for_and_a_script_is_told_yes(
    tmp_path: Path, command: tuple[str, ...], done: str
) -> None:
    config = tmp_path / "hub.yaml"
    config.write_text(f"store: {tmp_path / 'store'}\n")
    at = 2 if command[0] == "stream" else 1
    name, rest = command[:at], command[at:]
    unasked = weft("hub", *name, config, *rest)
    assert isinstance(unasked.exception, Refused)
    assert str(unasked.exception) == f"{done}: there is no terminal to ask on. Add --yes to confirm in advance"
    assert isinstance(weft("hub", *name, config, *rest, answer="n\n").exception, click.Abort)
    assert not (tmp_path / "store").exists()


# --- `weft hub drain` on a store whose entries of running processes are made by hand, and at a running hub by its URL


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of a store on which two machines run."""
    (tmp_path / "hub.yaml").write_text("listen: 127.0.0.1:8090\nstore: store\n")
    store = open_store(str(tmp_path / "store"))
    asyncio.run(open_cluster(store, 2))
    for at, host in enumerate(("hub-1", "hub-2")):
        entry = NodeEntry(host, "", "weft", 2, time.time_ns(), name=f"{host}:8090", host=host, links=at)
        asyncio.run(store.create(hub_keys.node_key(host), msgspec.json.encode(entry)))
    return tmp_path / "hub.yaml"


def drained(config: Path) -> list[tuple[str, str]]:
    found = json.loads(weft("hub", "declarations", config, "--json").output)
    return [(each["act"], each["name"]) for each in found]


def test_a_machine_is_drained_and_takes_shards_again(config: Path) -> None:
    assert "has no links and no tables; stop it now" in weft("hub", "drain", config, "hub-1", "--by", "mara").output
    refused = weft("hub", "drain", config, "hub-2:8090").exception
    assert "no other running process can own the shards of hub-2:8090" in str(refused)
    assert "Drained are: hub-1" in str(refused)
    assert "takes shards again" in weft("hub", "drain", config, "hub-1", "--undo").output
    assert "and still has 1 link and 0 tables" in weft("hub", "drain", config, "hub-2:8090", "--wait", "0s").output
    assert sorted(drained(config)) == [("declared", "hub-1"), ("declared", "hub-2:8090"), ("withdrew", "hub-1")]


def test_a_machine_stays_when_all_others_leave(config: Path) -> None:
    store = open_store(str(config.parent / "store"))
    leaving = NodeEntry("hub-2", "", "weft", 2, time.time_ns(), name="hub-2:8090", host="hub-2", state="leaving")
    etag = asyncio.run(store.get(hub_keys.node_key("hub-2"))).etag
    asyncio.run(store.swap(hub_keys.node_key("hub-2"), msgspec.json.encode(leaving), etag))
    refused = weft("hub", "drain", config, "hub-1").exception
    assert "no other running process can own the shards of hub-1" in str(refused)
    assert drained(config) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("hub-3",), "no hub process hub-3 runs on this store; there are: hub-1, hub-1:8090, hub-2"),
        (("hub-3", "--undo"), "hub-3 is not drained; drained are: none"),
        (("hub-1", "--wait", "soon"), "--wait"),
        (("hub-1", "--token-file", __file__), "--token-file is for the URL of a hub or a login"),
        (("hub-1", "--ca-file", __file__), "--ca-file is for the URL of a hub or a login"),
    ],
)
def test_what_cannot_be_drained_says_why(config: Path, arguments: tuple[str, ...], text: str) -> None:
    refused = weft("hub", "drain", config, *arguments).exception
    assert isinstance(refused, Failed | Refused)
    assert text in str(refused)
    assert drained(config) == []


async def test_a_url_names_a_running_hub_whose_record_has_the_token(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "root.token").write_text(ADMIN)

    def ask(*words: str) -> str:
        result = weft("hub", words[0], hub.url, *words[1:], "--token-file", tmp_path / "root.token")
        return result.output if result.exception is None else str(result.exception)

    async with running_hub(store, shards=1, **SOON) as hub:
        await declare(hub, store, token("ada", ADMIN, Scope.GRANTED, grants=role_grants(["administrator"])))
        refused = await asyncio.to_thread(ask, "drain", platform.node())
        assert "no other running process can own the shards" in refused
        assert "no hub process hub-9 runs on this store" in await asyncio.to_thread(ask, "drain", "hub-9")
        assert "hub-9 is not drained" in await asyncio.to_thread(ask, "drain", "hub-9", "--undo")
        assert "--by is for a configuration" in await asyncio.to_thread(ask, "drain", "hub-9", "--by", "mara")
        split = await asyncio.to_thread(ask, "split", "0", "--force", "--yes", "--reason", "a busy line")
        assert split.startswith("shard 0 is split: ")
        own = json.loads(await asyncio.to_thread(ask, "nodes", "--json"))["nodes"][0]["name"]
        async with running_hub(store, shards=1, **SOON):
            assert "has no links and no tables; stop it now" in await asyncio.to_thread(ask, "drain", own)
            assert "takes shards again" in await asyncio.to_thread(ask, "drain", own, "--undo")
    state = await ClusterLog(store, hub.cluster.cluster_id).load()
    assert state.facts(NODE) == {}


# --- `weft hub nodes` on a store whose entries of processes are made by hand


SECOND = 1_000_000_000


def test_what_is_gone_or_of_another_cluster_does_not_count_as_ready(tmp_path: Path) -> None:
    (tmp_path / "hub.yaml").write_text("listen: 127.0.0.1:8090\nstore: store\n")
    store = open_store(str(tmp_path / "store"))
    cluster, now = asyncio.run(open_cluster(store, 2)), time.time_ns()
    own = cluster.cluster_id.hex()
    beside = NodeEntry("", "", "weft", 2, now, host="hub", interval_s=5.0, cluster=own)
    entries = {
        "there": msgspec.structs.replace(beside, name="a:1", intake=Intake(812.44, 26_214.4, 60.0)),
        "of an earlier release": msgspec.structs.replace(beside, name="b:1", cluster=""),
        "killed": msgspec.structs.replace(beside, name="c:1", seen=now - 20 * SECOND),
        "alone, so that it writes each minute": msgspec.structs.replace(
            beside, name="d:1", seen=now - 60 * SECOND, interval_s=60.0
        ),
        "its life before": msgspec.structs.replace(beside, name="e:1", seen=now - 5 * SECOND, since=1),
        "its life now": msgspec.structs.replace(beside, name="e:1", since=2),
        "of the store before": msgspec.structs.replace(beside, name="f:1", restored=1),
        "of another hub": msgspec.structs.replace(beside, name="g:1", cluster="0" * 32),
    }
    for number, entry in enumerate(entries.values()):
        data = msgspec.json.encode(msgspec.structs.replace(entry, id=str(number)))
        asyncio.run(store.create(hub_keys.node_key(str(number)), data))
    said = weft("hub", "nodes", tmp_path / "hub.yaml").output.splitlines()
    assert {line.split("\t")[0]: line.split("\t")[7:9] for line in said[:3]} == {
        "node": ["records/s", "bytes/s"],
        "a:1": ["812.4", "25.6 KiB"],
        "b:1": ["", ""],
    }
    found = json.loads(weft("hub", "nodes", tmp_path / "hub.yaml", "--json").output)["nodes"]
    states = {name: next(each["state"] for each in found if each["id"] == str(at)) for at, name in enumerate(entries)}
    assert states == {
        "there": "ready",
        "of an earlier release": "ready",
        "killed": "gone",
        "alone, so that it writes each minute": "ready",
        "its life before": "gone",
        "its life now": "ready",
        "of the store before": "of another cluster",
        "of another hub": "of another cluster",
    }


# --- ``weft hub clock``, beside a hub that runs


YEARS = 14 * 365 * 86_400 * 10**9
SET_BACK = ("--set-back", "all", "--reason", "node b was of 2040", "--yes")


@pytest.fixture
def hub_clock_config(tmp_path: Path) -> Path:
    """A hub with two shards, of which a wrong clock wrote to shard 1."""
    path = tmp_path / "hub.yaml"
    path.write_text(
        f"listen: 127.0.0.1:{free_port()}\nstore: {tmp_path / 'store'}\nshards: 2\nprocesses: 1\ntables: null\n"
    )

    async def write() -> None:
        log = await LogWriter.open(open_store(str(tmp_path / "store")))
        log.created = time.time_ns()
        await log.append(0, Run(LANE, 0, 3))
        log.created += YEARS
        await log.append(1, Run(LANE._replace(edge="press-2"), 0, 3))

    asyncio.run(write())
    return path


def created(config: Path, shard: int) -> int:
    async def read() -> int:
        store = open_store(str(config.parent / "store"))
        return (await ShardLog(store, await open_cluster(store, None), shard).load()).created

    return asyncio.run(read())


@pytest.mark.processes
def test_times_in_the_future_are_shown_and_lowered_beside_a_running_hub(hub_clock_config: Path, start: Start) -> None:
    hub = start("hub", hub_clock_config)
    shown = weft("hub", "clock", hub_clock_config)
    assert shown.exit_code == 0
    assert "14.0 years ahead" in shown.output
    assert "weft hub clock CONFIG --set-back all --reason" in shown.output
    assert [
        each["ahead_s"] > 0 for each in json.loads(weft("hub", "clock", hub_clock_config, "--json").output)["shards"]
    ] == [False, True]
    before = created(hub_clock_config, 0)
    assert weft("hub", "clock", hub_clock_config, "--set-back", "0", *SET_BACK[2:]).output == (
        "nothing was lowered: no such shard has a time in the future\n"
    )
    done = weft("hub", "clock", hub_clock_config, *SET_BACK)
    assert done.output == "the time of shard 1 is lowered to now: node b was of 2040\n"
    assert abs(created(hub_clock_config, 1) - time.time_ns()) < 60 * 10**9
    assert created(hub_clock_config, 0) == before
    assert "ahead" not in weft("hub", "clock", hub_clock_config).output
    # The running node follows, and writes on from there.
    wait_until(lambda: hub.json("v1/status")["shards"][1]["chunk"] >= 1, what="the hub's look at the record")
    assert hub.stop() == 0


@pytest.mark.processes
def test_what_cannot_be_lowered_is_said(hub_clock_config: Path) -> None:
    unknown = weft("hub", "clock", hub_clock_config, "--set-back", "7", "--reason", "x", "--yes")
    assert isinstance(unknown.exception, Failed)
    assert "the hub has shards 0 to 1" in str(unknown.exception)
    assert isinstance(weft("hub", "clock", hub_clock_config, "--set-back", "1").exception, Refused)
    assert isinstance(weft("hub", "clock", hub_clock_config, "--reason", "x").exception, Refused)
    unasked = weft("hub", "clock", hub_clock_config, *SET_BACK[:-1])
    assert str(unasked.exception).startswith("nothing was lowered: there is no terminal to ask on")
    assert created(hub_clock_config, 1) > time.time_ns() + YEARS // 2


class _Synchronised:
    """The clocks of a machine whose time source is wrong, as its kernel cannot know."""

    is_synchronised, is_unknown = True, False

    def note_time(self, hub: str, time: int, error: int) -> None:
        """Its clock counts as right."""

    def notices(self) -> list[Clock]:
        return []


@pytest.mark.processes
async def test_status_names_edges_whose_synchronised_clocks_are_not_the_hubs(
    hub_clock_config: Path, start: Start
) -> None:
    hub, log = start("hub", hub_clock_config), EdgeLog()
    link = asyncio.create_task(
        run_link(
            log,
            LinkIdentity("default", "press-3", 9, "test"),
            LinkSettings((hub.url,), token=lambda: None),
            MemoryEpochs(),
            LinkStatus("cloud"),
            wall_clock=lambda: time.time_ns() - 3600 * 10**9,
            clocks=_Synchronised(),
        )
    )
    log.append(*make_batch(Lane("default", "press-3", 9, "telemetry"), 0, 1))
    await log.until_released(1)
    shown = await asyncio.to_thread(weft, "hub", "status", hub_clock_config)
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)
    assert (
        "CLOCK: 1 of 1 linked edges have synchronised clocks a minute or more from this hub's (default/press-3): one "
        "side is wrong"
    ) in shown.output


def rule(name: str, state: Literal["good", "alarm"]) -> QualityRuleOfNode:
    return QualityRuleOfNode(name, "a > 0", 0.0, state, None, "3 of 9 rows", 9, 3, 9, 3)


STATUS = StatusAnswer(
    software="weft 1",
    cluster_id="c",
    clock=ClockOfNode(0.0, None),
    level=1,
    release_level=1,
    name="one",
    state="ready",
    tls=None,
    process=0,
    processes=2,
    cluster_log=ClusterLogPosition(entry=0, seen_seconds_ago=1.0, trouble=None, tokens=0, skipped=[], unusable=[]),
    peers=[PeerProcess(process=1, port=2, url="http://127.0.0.1:2")],
    shards=[],
    tables=[
        TableOfNode("acme", name, 1, [], 9, 0, None, error, [], None, "one")
        for name, error in (("good", None), ("bad", "the disk is full"))
    ],
    tables_more=0,
    tables_trouble="the tables cannot be listed",
    latest_tables=[LatestOfNode("acme", "newest", "latest/newest", ["_key"], 3, 9, 0, "no such column", False, 0)],
    iceberg_tables=[
        IcebergOfNode("tables/acme/bad", 1, "it has columnMapping"),
        IcebergOfNode("tables/acme/good", 1, None),
    ],
    conflicts=[],
    open_gaps=[],
    open_gaps_more=0,
    lost=[],
    quality=[
        QualityOfNode("acme", "good", 1, 9, 0, [rule("in_range", "good")], [], None),
        QualityOfNode("acme", "bad", 1, 9, 0, [rule("in_range", "good"), rule("whole", "alarm")], [], None),
    ],
    links=[
        LinkOfProcess(tenant="acme", edge=name, connected_since="t", unkept_clock_off_seconds=off)
        for name, off in (("right", 0.1), ("wrong", 7200.0))
    ],
)


COPY = CopyOfEdge(at="right", reported="2026-11-29T12:00:00Z", log="07", complete_to=None, vouched=True, records=3)
PAIR_OF_LOST = PairOfEdge(times_alone=[], copies=[COPY])
PAIR_ALONE = PairOfEdge(times_alone=[TimeAlone(since="2026-11-29T12:00:00Z", until=None)], copies=[COPY])


def test_status_shows_what_is_in_trouble_at_any_process_and_nothing_else_if_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two processes on a machine: at the second, a tenant waits at its quota."""
    edges = [
        EdgeOfHub(
            tenant="acme",
            edge=name,
            shard=0,
            logs=[],
            streams=1,
            last_seen=None,
            connected_since=since,
            software=None,
            clock_off_seconds=None,
            missing_records=0,
            complete_up_to=None,
            retired=False,
            pair=pair,
            alarms=[],
        )
        for name, since, pair in (("right", "t", UNSET), ("gone", None, PAIR_OF_LOST), ("one", "t", PAIR_ALONE))
    ]
    none = TroublesAnswer(conflicts=[], conflicts_more=0, open_gaps=[], open_gaps_more=0, lost=[], at_quota=[])
    waits = msgspec.structs.replace(none, at_quota=[TenantAtQuota("acme", "bytes_per_second", 1024, 99.0, 7)])
    drains = DrainsAnswer(
        drains=[DrainOfNode(node="host-2", since="2026-11-29T12:00:00Z", by="ann", reason="a disk", links=2, tables=0)]
    )
    monkeypatch.setattr(hub_status, "running_hub", lambda *_: RunningHub("http://127.0.0.1:1", port=1))
    answers = {"status": lambda _: STATUS, "edges": lambda *_, **__: EdgesAnswer(edges=edges, next_after=None)}
    answers |= {"drains": lambda _: drains, "troubles": lambda hub: waits if hub.port == 2 else none}
    for name, answer in answers.items():
        monkeypatch.setattr(RunningHub, name, answer)
    shown = weft("hub", "status", "hub.yaml", "--trouble").output
    for each in (
        "QUOTA: tenant acme has reached bytes_per_second (1KiB), with 7 edges, which wait 99 seconds",
        "TABLES: the tables cannot be listed",
        "TABLE: acme/bad is not being updated: the disk is full",
        "TABLE: the latest table of acme/newest is not being updated: no such column",
        "TABLE: the Iceberg metadata of tables/acme/bad is not being updated: it has columnMapping",
        "QUALITY: acme/bad, rule whole: 3 of 9 rows",
        "DRAINED: host-2 since 2026-11-29T12:00:00Z, by ann: a disk. Still there: 2 links. To end it: ",
        "CLOCK: 2 of 4 linked edges have clocks that no time service keeps",
    ):
        assert each in shown
    assert "acme/good" not in shown
    assert re.search(r"^acme/gone\t.*\tunknown\t", shown, re.MULTILINE), "what it lost is not known"
    assert "copy at right: it and the hub have all that it acknowledged, 3 records of it not here yet" in shown
    assert "alone: records have one disk since 2026-11-29T12:00:00Z" in shown
    assert "acme/right" not in shown
    found = json.loads(weft("hub", "status", "hub.yaml", "--trouble", "--json").output)
    assert [each["edge"] for each in found["edges"]] == ["gone", "one"]
    assert "lost_records" not in found["edges"][0], "an earlier release has not counted them"
    assert {each["stream"] for each in found["tables"]} == {"bad"}
    assert {each["edge"] for each in found["links"]} == {"wrong"}
    rules = {(each["stream"], rule["name"]) for each in found["quality"] for rule in each["rules"]}
    assert rules == {("bad", "whole")}, "as the text: a rule that is good is no trouble"
    assert [each["node"] for each in found["drains"]] == ["host-2"]
    assert [each["tenant"] for each in found["at_quota"]] == ["acme"]
    everything = json.loads(weft("hub", "status", "hub.yaml", "--json").output)
    assert [each["edge"] for each in everything["edges"]] == ["right", "gone", "one"]


def test_losses_of_the_fleet_are_a_table_with_what_each_edge_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(edge: str, first: int, end: int, more: int) -> LossesOfEdge:
        gap = LossOfEdge(first=first, end=end, reason="budget", stream="telemetry", log="07")
        return LossesOfEdge(
            tenant="acme",
            edge=edge,
            shard=0,
            last_seen=None,
            retired=False,
            losses=[gap],
            losses_more=more,
            records=end - first,
        )

    pages = {
        None: LossesAnswer(edges=[lost("press-1", 10, 14, 2)], next_after="acme/press-1"),
        "acme/press-1": LossesAnswer(edges=[lost("press-2", 5, 6, 0)], next_after=None),
    }
    monkeypatch.setattr(hub_status, "running_hub", lambda *_: RunningHub("http://127.0.0.1:1"))
    monkeypatch.setattr(RunningHub, "losses", lambda *_, after=None, **__: pages[after])
    shown = weft("hub", "losses", "hub.yaml").output
    assert "acme/press-1\ttelemetry\t07\t10\t13\t4\tbudget" in shown
    assert "acme/press-1: and 2 gaps more" in shown
    assert shown.endswith("5 records of 2 edges lost for good\n")
    one = json.loads(weft("hub", "losses", "hub.yaml", "--edge", "press-2", "--json").output)
    assert [(each["edge"], each["records"]) for each in one["edges"]] == [("press-2", 1)]
    assert weft("hub", "losses", "hub.yaml", "--edge", "press-3").output == "0 records of 0 edges lost for good\n"
