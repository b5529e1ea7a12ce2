"""Every administrative command leaves its line, found from the tree of commands itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from deltalake import DeltaTable

from examples.demo.fabric import free_port
from tests.cloud_hub.tables.logs import LANE, OTHER, LogWriter, Run
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from tests.support.processes import Start, weft
from tests.support.tokens import create_token
from tests.support.waiting import wait_until
from weft.cli import cli
from weft.client import Client
from weft.commands import acts as file_acts
from weft.hub_api.rights import Scope
from weft.output import Failed
from weft.protocols.lane import AUDIT_STREAM, AUDIT_TENANT
from weft.protocols.shard.placement import shard_of
from weft.storage.object_store import open_store

Words = tuple[str, ...]
DAY_NS = 86_400 * 10**9
WHY = ("--reason", "case 12", "--by", "mara")
KEY = Run(LANE, 0, 1).key.decode()

READING = {
    ("audit",): "reads",
    ("ca", "device"): "writes files of an authority, beside no hub",
    ("ca", "edge"): "likewise",
    ("ca", "hub"): "likewise",
    ("ca", "init"): "likewise",
    ("ca", "list"): "reads",
    ("ca", "renew-list"): "likewise",
    ("ca", "revoke"): "likewise; its list names certificate and moment",
    ("completion",): "prints",
    ("config", "keygen"): "writes a key, beside no hub",
    ("config", "schema"): "prints",
    ("config", "sign"): "writes a file",
    ("config", "sign-code"): "writes a file",
    ("config", "verify"): "reads",
    ("edge", "browse"): "reads",
    ("edge", "check"): "reads",
    ("edge", "config"): "reads",
    ("edge", "doctor"): "reads",
    ("edge", "init"): "writes the first files of a node",
    ("edge", "pair"): "takes a token; the hub has the line of it",
    ("edge", "query"): "reads",
    ("edge", "support-bundle"): "reads",
    ("edge", "status"): "reads",
    ("edge", "tail"): "reads",
    ("edge", "test-function"): "runs on a file",
    ("edge", "test-source"): "reads",
    ("edge", "trust"): "writes a certificate into a file beside the configuration",
    ("hub", "acts"): "reads",
    ("hub", "backup"): "copies the store, and leaves it as it is",
    ("hub", "check"): "reads",
    ("hub", "config", "get"): "reads",
    ("hub", "config", "rollout", "list"): "reads",
    ("hub", "config", "status"): "reads",
    ("hub", "declarations"): "reads",
    ("hub", "doctor"): "reads",
    ("hub", "group", "list"): "reads",
    ("hub", "init"): "writes the first files of a hub",
    ("hub", "messages"): "reads",
    ("hub", "nodes"): "reads",
    ("hub", "pulls"): "reads",
    ("hub", "region", "status"): "reads",
    ("hub", "quality", "get"): "reads",
    ("hub", "quality", "list"): "reads",
    ("hub", "restore"): "makes another store, whose cluster.json says so",
    ("hub", "schema", "diff"): "reads",
    ("hub", "requests"): "reads",
    ("hub", "schema", "check"): "reads",
    ("hub", "schema", "get"): "reads",
    ("hub", "schema", "infer"): "reads",
    ("hub", "schema", "list"): "reads",
    ("hub", "status"): "reads",
    ("hub", "support-bundle"): "reads",
    ("hub", "losses"): "reads",
    ("hub", "table", "list"): "reads",
    ("hub", "tenant", "list"): "reads",
    ("hub", "tail"): "reads",
    ("hub", "token", "list"): "reads",
    ("hub", "trace"): "reads",
    ("hub", "usage"): "reads",
    ("hub", "verify"): "reads",
    ("hub", "whoami"): "reads",
    ("link", "status"): "reads",
    ("log", "dump"): "reads",
    ("spark", "check"): "reads",
    ("spark", "sql"): "reads",
    ("spark", "move"): "replaces the position in a checkpoint of Spark; reads both stores",
    ("spark", "test"): "reads",
    ("login",): "writes a file of the user, and asks a hub whose token it is",
    ("spark", "new"): "writes files of a pipeline",
    ("sql",): "reads",
    ("streams",): "reads",
    ("trace",): "reads",
    ("user", "check"): "reads",
    ("user", "list"): "reads",
}
"""Command -> why it is no administrative act."""
RUNNING = {("edge", "run"), ("hub", "run"), ("spark", "run")}
"""Services; what runs them keeps a log of it."""
AT_EDGES = {
    ("edge", "import"),
    ("edge", "reload"),
    ("edge", "rename"),
    ("edge", "replay"),
    ("edge", "take-over"),
    ("link", "acknowledge"),
    ("link", "pause"),
    ("link", "resume"),
    ("log", "drop"),
}
"""Orders to an edge node: their lines are in ``orders.acts`` of its data_dir, whose end the tests below look at."""
TO_EDGES = {("hub", "publish")}
"""Messages: their records name the token (0173)."""
BESIDE_NODES: set[Words] = {("hub", "drain"), ("hub", "pull")}
"""Acts that need a running hub."""
OF_TWO: set[Words] = {("hub", "approve")}
"""Acts that need another person's before: test_second_person.py."""
ON_FILES: dict[Words, Sequence[str]] = {
    ("user", "add"): ("anna", "--file", "users", "--password-file", "-"),
    ("user", "remove"): ("anna", "--file", "users"),
}
REGION = "regions: {east: {to: [https://east.example.com]}}\n"
ON_STORE: dict[Words, Sequence[Sequence[str]]] = {
    ("hub", "skip"): [("telemetry", "--shard", "{shard}", "--from", "20", "--to", "21", "--yes")],
    ("hub", "clock"): [("--set-back", "all", "--yes")],
    ("hub", "finalize"): [("--yes",)],
    ("hub", "tenant", "add"): [("acme", "--isolation", "own"), ("other",)],
    ("hub", "tenant", "set"): [("acme", "--edges", "40")],
    ("hub", "tenant", "remove"): [("other",)],
    ("hub", "token", "add"): [("ops", "--scope", "admin", "--yes")],
    ("hub", "token", "import"): [("--file", "imported", "--yes")],
    ("hub", "token", "rotate"): [("ops",)],
    ("hub", "token", "pair"): [("press-7", "--yes")],
    ("hub", "share"): [("quality", "--stream", "telemetry", "--expires", "30d", "--yes")],
    ("hub", "token", "remove"): [("ops",), ("press",), ("press-7",), ("quality",)],
    ("hub", "open"): [("--yes",)],
    ("hub", "stream", "expect"): [("telemetry", "press-*")],
    ("hub", "group", "set"): [("all", "press-*")],
    ("hub", "config", "set"): [("all", "settings.yaml", "--group", "--share", "0.1"), ("press-1", "settings.yaml")],
    ("hub", "config", "rollout", "next"): [("all", "--share", "0.5")],
    ("hub", "config", "rollout", "abort"): [("all",)],
    ("hub", "config", "remove"): [("press-1",), ("all", "--group")],
    ("hub", "group", "remove"): [("all",)],
    ("hub", "schema", "set"): [("telemetry", "schema.yaml")],
    ("hub", "schema", "remove"): [("telemetry",)],
    ("hub", "quality", "set"): [("telemetry", "quality.yaml")],
    ("hub", "quality", "remove"): [("telemetry",)],
    ("hub", "table", "set"): [("telemetry", "--retain", "400d")],
    ("hub", "table", "remove"): [("telemetry",)],
    ("hub", "declare-deletion"): [("telemetry", "--edge", "press-1", "--yes")],
    ("hub", "erase"): [("telemetry", "--key", KEY, "--yes")],
    ("hub", "erasures"): [("telemetry", "--tidy")],
    ("hub", "retire"): [("press-1", "--yes")],
    ("hub", "adopt"): [("press-1", "--yes")],
    ("hub", "split"): [("0", "--force", "--yes")],
    ("hub", "stream", "delete"): [("telemetry", "--force", "--yes")],
    ("hub", "region", "pause"): [("east",)],
    ("hub", "region", "resume"): [("east",)],
    ("hub", "region", "compare"): [("east",)],
    ("hub", "region", "history"): [("east",)],
    ("hub", "second-person"): [("--require", "names", "--valid", "2h")],
}


def leaves(command: click.Command, words: Words = ()) -> Iterator[tuple[Words, click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, (*words, name))


def test_every_command_is_an_act_with_a_line_or_none() -> None:
    found = dict(leaves(cli))
    acts = {*ON_STORE, *ON_FILES, *BESIDE_NODES, *OF_TWO}
    listed = [*READING, *RUNNING, *AT_EDGES, *TO_EDGES, *acts]
    assert sorted(found) == sorted(listed), "a new command is an act, with a line that this module finds, or none"
    for words in acts - {("hub", "pull")}:
        options = {option for each in found[words].params for option in each.opts}
        assert {"--reason", "--by"} <= options, f"weft {' '.join(words)} takes who decided, and why"


def entries(config: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(weft("hub", "declarations", config, "--last", "200", "--json").output)
    return found[::-1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hub.yaml").write_text("store: store\nretain_log: 30d\n" + REGION)
    return tmp_path


async def prepare(folder: Path) -> int:
    """Make a store with two lanes, a table that lacks 5 rows, and a shard whose time is in the future.

    Return the shard of the first lane."""
    log = await LogWriter.open(open_store(str(folder / "store")))
    shard = shard_of(LANE.tenant, LANE.edge, 2)
    await log.append(shard, Run(LANE, 0, 10))
    await log.append(shard_of(OTHER.tenant, OTHER.edge, 2), Run(OTHER, 0, 5))
    log.created = time.time_ns() + 10 * DAY_NS
    await log.append(shard, Run(LANE, 10, 5))
    await drain(await new_tierer(log.store, log))
    await log.append(shard, Run(LANE, 15, 5))
    return shard


@pytest.mark.slow
def test_every_act_on_a_store_leaves_its_line(folder: Path) -> None:
    shard = asyncio.run(prepare(folder))
    (folder / "settings.yaml").write_text("streams: {telemetry: {retain: {time: 7d}}}\n")
    (folder / "schema.yaml").write_text("fields: {temperature: float}\n")
    (folder / "quality.yaml").write_text("rules: {warm: {range: {field: temperature, max: 90}}}\n")
    create_token(folder / "imported", "press", Scope.EDGE, edge="press-1")
    seen = 0
    for words, calls in ON_STORE.items():
        for call in calls:
            done = weft(*words, "hub.yaml", *(each.format(shard=shard) for each in call), *WHY)
            allowed = (0, 1) if words == ("hub", "erasures") else (0,)
            assert done.exit_code in allowed, (words, done.output, done.exception)
        new = entries(folder / "hub.yaml")[seen:]
        seen += len(new)
        own = [each for each in new if each["command"] == " ".join(words)]
        assert own, f"weft {' '.join(words)} left no line"
        assert all(each["by"] == "mara" and "@" in each["origin"] for each in own)
        assert "case 12" in {each["reason"] for each in own}
        began = [each["name"] for each in own if each["act"] == "began"]
        assert began == [each["name"] for each in own if (each["act"], each["reason"]) == ("ended", "done")]
        assert began or {each["act"] for each in own} <= {"declared", "withdrew"}
    assert KEY not in json.dumps(entries(folder / "hub.yaml")), "a line is kept for good, and has no personal data"


@pytest.mark.slow
def test_every_act_on_a_file_leaves_its_line(folder: Path) -> None:
    for words, arguments in ON_FILES.items():
        done = weft(*words, *arguments, *WHY, answer="secret\n")
        assert done.exit_code == 0, (words, done.exception)
        lines = [json.loads(line) for line in (folder / f"{arguments[2]}.acts").read_text().splitlines()]
        began, ended = lines[-2:]
        assert [began["act"], ended["act"], ended["reason"]] == ["began", "ended", "done"]
        assert (began["command"], began["by"], began["reason"]) == (" ".join(words), "mara", "case 12")
        assert arguments[0] in began["target"]
        assert began["id"] == ended["id"]
    assert "secret" not in (folder / "users.acts").read_text()


def test_a_file_whose_lines_cannot_be_written_stays_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = partial(weft, "user", "add", "--file", "users", "--password-file", "-", answer="secret\n")
    assert create("a").exit_code == 0
    before = (folder / "users").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(file_acts, "BYTES_MAX", 100)
        full = create("b")
    assert isinstance(full.exception, Failed)
    assert "archive it and try again. Nothing was changed" in str(full.exception)
    (folder / "users.acts").unlink()
    (folder / "users.acts").symlink_to(folder / "elsewhere")
    assert create("b").exit_code == 1
    assert (folder / "users").read_bytes() == before
    assert not (folder / "elsewhere").exists()


def orders(folder: Path, name: str = "orders.acts") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_an_order_to_an_edge_node_has_its_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "data").mkdir()
    calls = {
        ("link", "pause"): ("--link", "satellite"),
        ("link", "resume"): (),
        ("link", "acknowledge"): (),
        ("edge", "reload"): (),
        ("edge", "replay"): ("hot", "--into", "again"),
    }
    for words, more in calls.items():
        assert isinstance(weft(*words, "data", *more).exception, Failed), "no node runs there"
        began, ended = orders(folder / "data")[-2:]
        assert (began["act"], began["command"], ended["act"]) == ("began", " ".join(words), "ended")
        assert (ended["id"], ended["reason"][:7]) == (began["id"], "failed:")
        assert "@" in began["by"]
    assert "satellite" in orders(folder / "data")[0]["target"]
    count = len(orders(folder / "data"))
    assert weft("link", "status", "data").exit_code == 1
    assert len(orders(folder / "data")) == count, "to look is no order"
    monkeypatch.setattr(file_acts, "ORDERS_BYTES_MAX", 300)
    weft("link", "resume", "data")
    assert len(orders(folder / "data", "orders.acts.1")) in {count, count + 1}
    (folder / "data" / "orders.acts").unlink(missing_ok=True)
    (folder / "data" / "orders.acts").mkdir()
    refused = weft("link", "resume", "data")
    assert "warning: the order has no line" in refused.stderr
    assert isinstance(refused.exception, Failed), "the order was given all the same"
    assert weft("link", "resume", "elsewhere").exit_code == 1


@pytest.mark.slow
@pytest.mark.processes
def test_acts_beside_a_running_hub_are_listed_page_by_page(folder: Path, start: Start) -> None:
    config = folder / "hub.yaml"
    config.write_text(f"listen: 127.0.0.1:{free_port()}\nstore: store\nprocesses: 2\nshards: 2\ntables: null\n")
    hub = start("hub", config)
    wait_until(lambda: len(json.loads(weft("hub", "nodes", config, "--json").output)["nodes"]) == 2, what="two nodes")
    node = json.loads(weft("hub", "nodes", config, "--json").output)["nodes"][0]["name"]
    assert weft("hub", "drain", config, node, "--wait", "0s", *WHY).exit_code == 0
    assert weft("hub", "drain", config, node, "--undo", *WHY).exit_code == 0
    for number in range(5):
        assert weft("hub", "tenant", "add", config, f"t-{number}", *WHY).exit_code == 0
    refused = weft("hub", "pull", config, "press-1", "vibration", "--from", "2026-01-01", "--to", "2026-01-02")
    assert "has linked to the hub" in str(refused.exception), "what the hub refuses is no act"
    client = Client(hub.url.rstrip("/"))
    wait_until(lambda: client.acts(limit=1).last >= 7, what="the lines")
    whole = json.loads(weft("hub", "acts", config, "--json").output)["acts"]
    assert [each["command"] for each in whole] == ["hub drain"] * 2 + ["hub tenant add"] * 5
    page = client.acts(after="0", limit=3)
    assert ([each.entry for each in page.acts], page.next_after, page.last) == ([1, 2, 3], "3", 7)
    assert [each.entry for each in client.acts(limit=2).acts] == [6, 7]
    assert client.acts(after="7").acts == []
    shown = weft("hub", "acts", config, "--last", "1").output
    assert "mara" in shown
    assert "declared: hub tenant add" in shown
    assert "case 12" in shown


@pytest.mark.slow
@pytest.mark.processes
def test_lines_come_once_through_kills_of_two_hub_processes(folder: Path, start: Start) -> None:
    nodes = []
    for number in range(2):
        config = folder / f"hub-{number}.yaml"
        config.write_text(
            f"listen: 127.0.0.1:{free_port()}\nstore: store\nshards: 2\nprocesses: 1\ncommit_interval: 20ms\n"
            "tables: {interval: 1s}\n"
        )
        nodes.append((config, start("hub", config)))
    for round_ in range(6):
        for number in range(4):
            done = weft("hub", "tenant", "add", nodes[0][0], f"t-{round_}-{number}", "--reason", "case 12")
            assert done.exit_code == 0
        config, node = nodes[round_ % 2]
        node.kill()
        nodes[round_ % 2] = config, start("hub", config)

    def found() -> list[dict[str, Any]]:
        client = Client(nodes[0][1].url.rstrip("/"))
        stream = client.stream(AUDIT_STREAM, tenant=AUDIT_TENANT)
        return [
            json.loads(str(each.payload))
            for shard in stream.next_offset
            for each in client.all_records(AUDIT_STREAM, int(shard), tenant=AUDIT_TENANT)
        ]

    wait_until(lambda: len(found()) >= 24, what="all lines in the stream")
    assert [each["entry"] for each in found()] == list(range(1, 25))

    def rows() -> int:
        uri, options = open_store(str(folder / "store")).location(f"tables/{AUDIT_TENANT}/{AUDIT_STREAM}")
        return len(DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["_seq"]))

    first = folder / f"store/tables/{AUDIT_TENANT}/{AUDIT_STREAM}/_delta_log/{0:020}.json"
    wait_until(lambda: first.exists() and rows() >= 24, what="the rows")
    assert rows() == 24
