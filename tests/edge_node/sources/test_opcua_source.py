"""An OPC UA source: each value of the server is a row once, or lies in a gap that has a name."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asyncua import Client, ua
from asyncua.common.utils import Buffer, NotEnoughData
from asyncua.ua.ua_binary import variant_from_binary
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from examples.demo.fabric import free_port
from tests.edge_node.sources.nodes import NODE, SourceNode, running
from tests.support.opcua_server import OpcuaServer, Options
from tests.support.processes import Node
from tests.support.waiting import until, wait_until
from weft.cli import cli
from weft.config.sources import OpcuaBrowse, OpcuaNode, OpcuaSecurity, OpcuaSource
from weft.edge_node.sources.connection import Runner
from weft.edge_node.sources.opcua import OpcuaConnection
from weft.edge_node.sources.opcua_client import Frames, make_certificate, why_untrusted
from weft.edge_node.sources.opcua_space import EVENT_FIELDS, Item, Space, Types, facts
from weft.edge_node.sources.opcua_subscription import Subscription, ahead, following, preceding
from weft.edge_node.sources.status import Now, SourceStatus
from weft.edge_node.status.pages import tables
from weft.protocols.batch import Flag, Record
from weft.text.edge_status import show_running

PRESS = NODE.replace("plant/#", "press/#")
NOW = datetime(2026, 11, 1, tzinfo=UTC)
MARGIN = timedelta(seconds=0.5)
"""Rows of so long may lie in a gap behind them: a change may be older than the notification before it, by an interval
of sampling."""


def opcua(port: int, more: str = "", nodes: str = '[{browse: {below: "Objects/Press"}}]') -> str:
    return (
        f'sources:\n  press:\n    opcua:\n      url: "opc.tcp://127.0.0.1:{port}"\n      publishing: 50ms\n'
        f"      retry_min: 20ms\n      retry_max: 200ms\n      keep_alive: 1s\n      nodes: {nodes}\n{more}"
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OpcuaServer]:
    with OpcuaServer(free_port(), tmp_path / "values.log") as found:
        yield found


def gaps(found: list[Record]) -> list[dict[str, Any]]:
    return [json.loads(each.payload) for each in found if each.key == b"press/$gap"]


def assert_whole(server: OpcuaServer, found: list[Record]) -> dict[str, int]:
    """Each value that the server had is a row, or lies in a gap that has a name; and no row is there twice.

    A notice may be there twice. What it names must not be all that there is: most rows lie in no gap.
    """
    rows: dict[str, Counter[int]] = {}
    seen: dict[str, set[int]] = {}
    filled: set[tuple[str, int]] = set()
    for record in found:
        if record.key == b"press/$gap":
            continue
        payload, name = json.loads(record.payload), record.key.decode().rpartition("/")[2]
        seen.setdefault(name, set()).add(payload["value"])
        if payload.get("filled"):
            filled.add((name, payload["value"]))
        # The first value of a subscription is what a variable is, not how it changed; the flag says what may be twice.
        if not payload.get("initial") and not record.flags & Flag.DUPLICATE_SUSPECTED:
            rows.setdefault(name, Counter())[payload["value"]] += 1
    assert [(name, row) for name, counts in rows.items() for row, count in counts.items() if count > 1] == []
    named = [
        (datetime.fromisoformat(each["from"]), datetime.fromisoformat(each["to"]), each.get("items"))
        for each in gaps(found)
        if each["lost"] == "possible" and each["from"] and each["to"]
    ]
    counts, lost, within = Counter[str](), [], 0
    for name, number, time in server.values():
        if not min(seen[name]) <= number <= max(seen[name]):
            continue
        spans = [(a, b) for a, b, topics in named if topics is None or f"press/Press/{name}" in topics]
        if number in seen[name]:
            counts["rows"] += 1
            within += (name, number) not in filled and any(a + MARGIN < time < b for a, b in spans)
        elif any(a <= time <= b for a, b in spans):
            counts["in gaps"] += 1
        else:
            lost.append((name, number, time))
    assert lost == [], named
    assert within <= counts["rows"] / 2, ("gaps with rows in them", named)
    return dict(counts)


async def more_rows(node: SourceNode, count: int = 30) -> None:
    wanted = node.source("press").messages + count
    await until(lambda: node.source("press").messages >= wanted)


async def test_a_change_is_a_record_with_its_times_status_and_unit(
    tmp_path: Path, server: OpcuaServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, opcua(server.port), PRESS) as node:
        await more_rows(node)
        found, status = await node.stored(), node.source("press")
        assert status.value_time is not None
        now = Now(status.value_time + 2 * 10**9, asyncio.get_running_loop().time(), is_synchronised=True)
        facts = status.facts(now)
        shown = node.node.status.facts()
    assert facts["values"] >= 30
    assert facts["values_per_second"] > 0
    assert facts["lag_seconds"] == 2.0
    show_running(shown, 0)
    assert "values a second" in capsys.readouterr().out
    assert "<th>lag</th>" in tables(shown)
    payload = json.loads(found[-1].payload)
    assert found[-1].key.startswith(b"press/Press/v")
    assert payload["node"].startswith("nsu=urn:example:press;s=v")
    assert payload["status_name"] == "Good"
    assert payload["unit"] == "bar"
    times = {(name, number): time for name, number, time in server.values()}
    time = times[found[-1].key.decode()[-2:], payload["value"]]
    assert datetime.fromisoformat(payload["source_time"]) == time
    assert (
        dict(found[-1].headers)["weft.sent"]
        == (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    )
    assert gaps(found) == []
    assert_whole(server, found)


async def test_a_server_that_is_killed_leaves_named_gaps_only(tmp_path: Path, server: OpcuaServer) -> None:
    async with running(tmp_path, opcua(server.port), PRESS) as node:
        for _ in range(3):
            await more_rows(node)
            server.kill()
            await until(lambda: node.source("press").state != "connected")
            await asyncio.to_thread(server.start)
        await more_rows(node)
        found = await node.stored()
    assert_whole(server, found)
    assert [each["kind"] for each in gaps(found)] == ["subscription"] * 3


class Cutter:
    """A proxy whose connections can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0
        self._is_away = False

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Cutter]:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        yield self
        server.close()
        self.cut()

    async def away(self, seconds: float) -> None:
        with self.held():
            await asyncio.sleep(seconds)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._is_away = True
        self.cut()
        yield
        self._is_away = False

    def cut(self) -> None:
        for each in self._open:
            each.transport.abort()
        self._open.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_away:
            writer.transport.abort()
            return
        try:
            there, to = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, to}

        async def one_way(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65_536):
                    target.write(data)
                    await target.drain()
            except OSError:
                pass
            finally:
                target.transport.abort()

        await asyncio.gather(one_way(reader, to), one_way(there, writer))


async def test_a_cut_network_costs_nothing(tmp_path: Path, server: OpcuaServer) -> None:
    async with Cutter(server.port).listening() as proxy, running(tmp_path, opcua(proxy.port), PRESS) as node:
        await more_rows(node)
        for _ in range(20):
            connections = node.source("press").connections
            proxy.cut()
            await until(lambda before=connections: node.source("press").connections > before)  # type: ignore[misc]
            await more_rows(node, 6)
        found = await node.stored()
    assert assert_whole(server, found).get("in gaps") is None
    assert {(each["kind"], each["lost"]) for each in gaps(found)} == {("away", "none")}
    assert not any(each.flags & Flag.DUPLICATE_SUSPECTED for each in found)


@pytest.mark.parametrize(
    ("fault", "found_by"), [("", ""), ("not named", r"datetime"), ("names all", "gaps with rows in them")]
)
async def test_the_recount_finds_a_gap_that_is_not_named_and_one_that_names_all(
    tmp_path: Path, server: OpcuaServer, monkeypatch: pytest.MonkeyPatch, fault: str, found_by: str
) -> None:
    notice = OpcuaConnection._notice

    def faulty(self: OpcuaConnection, kind: str, why: str, since: int, until: int, *more: Any, **named: Any) -> None:
        if kind == "subscription" and fault == "not named":
            named["lost"] = "none"
        elif kind == "subscription" and fault:
            since, until = since - 3600 * 10**9, until + 3600 * 10**9
        notice(self, kind, why, since, until, *more, **named)

    monkeypatch.setattr(OpcuaConnection, "_notice", faulty)
    async with Cutter(server.port).listening() as proxy, running(tmp_path, opcua(proxy.port), PRESS) as node:
        await more_rows(node)
        with proxy.held():
            before = len(server.values())
            await until(lambda: len(server.values()) > before + 30)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        connections = node.source("press").connections
        await until(lambda: node.source("press").connections > connections)
        await more_rows(node)
        found = await node.stored()
    if fault:
        with pytest.raises(AssertionError, match=found_by):
            assert_whole(server, found)
    else:
        assert assert_whole(server, found)["in gaps"] >= 30 - 3, "but for those on their way"


async def test_a_node_that_stops_goes_on_where_it_was(tmp_path: Path, server: OpcuaServer) -> None:
    for _ in range(3):
        async with running(tmp_path, opcua(server.port), PRESS) as node:
            await more_rows(node)
            found = await node.stored()
    assert assert_whole(server, found).get("in gaps") is None
    assert {(each["kind"], each["lost"]) for each in gaps(found)} == {("away", "none")}
    assert server.notes() == ["session closed"] * 3, "the subscription stays for its lifetime, and the session does not"


async def test_other_settings_end_the_subscription_that_no_run_resumes(tmp_path: Path, server: OpcuaServer) -> None:
    async def session_ends(at: str, node: SourceNode, source: str) -> None:
        before = len(server.notes())
        node.apply(PRESS.format(name="data") + source)
        await until(lambda: server.notes()[before:] == [at])

    before = opcua(server.port)
    async with running(tmp_path, before, PRESS) as node:
        await more_rows(node)
        await session_ends("session closed", node, before.replace("retry_max: 200ms", "retry_max: 300ms"))
        await more_rows(node)
        await session_ends("session closed, with its subscriptions", node, before.replace("50ms", "60ms"))
        await more_rows(node)
        await session_ends("session closed, with its subscriptions", node, "")
        found = await node.stored()
    assert_whole(server, found)
    assert [each["reason"].partition(";")[0] for each in gaps(found) if each["lost"] == "possible"] == [
        "the settings of the source have changed"
    ]


async def test_a_subscription_of_other_settings_is_ended_by_the_next_run(tmp_path: Path, server: OpcuaServer) -> None:
    async with running(tmp_path, opcua(server.port), PRESS) as node:
        await more_rows(node)
        former = json.loads((tmp_path / "data/sources/press.subscription.json").read_bytes())["id"]
    async with running(tmp_path, opcua(server.port).replace("50ms", "60ms"), PRESS) as node:
        await more_rows(node)
        assert_whole(server, await node.stored())
    async with Client(f"opc.tcp://127.0.0.1:{server.port}/") as other:
        parameters = ua.TransferSubscriptionsParameters([former], False)
        (result,) = await other.uaclient.transfer_subscriptions(parameters)
        assert result.StatusCode.name == "BadSubscriptionIdInvalid"


async def test_browsing_has_no_end_but_that_of_each_answer(
    tmp_path: Path, server: OpcuaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "connect_timeout_s", 0.0)
    async with running(tmp_path, opcua(server.port), PRESS) as node:
        await more_rows(node)


async def test_a_full_queue_of_the_server_is_a_gap_of_its_variable(tmp_path: Path) -> None:
    with OpcuaServer(free_port(), tmp_path / "values.log", Options(every_s=0.002)) as fast:
        config = opcua(fast.port, "      queue: 3\n").replace("publishing: 50ms", "publishing: 300ms")
        async with running(tmp_path, config, PRESS) as node:
            await more_rows(node, 60)
            found = await node.stored()
    assert assert_whole(fast, found)["in gaps"]
    assert {each["kind"] for each in gaps(found)} == {"overflow"}
    assert {len(each["items"]) for each in gaps(found)} == {1}


async def test_history_fills_a_gap(tmp_path: Path) -> None:
    with OpcuaServer(free_port(), tmp_path / "values.log", Options(every_s=0.02, history=True)) as kept:
        config = opcua(kept.port, "      queue: 3\n").replace("publishing: 50ms", "publishing: 300ms")
        async with running(tmp_path, config, PRESS) as node:
            await more_rows(node, 60)

            async with asyncio.timeout(60):
                while True:
                    found = await node.stored()
                    if any(each["kind"] == "filled" and each["values"] for each in gaps(found)):
                        break
                    await asyncio.sleep(0.05)
    assert_whole(kept, found)
    assert any(json.loads(each.payload).get("filled") for each in found if each.key != b"press/$gap")


async def test_a_notification_that_is_too_long_is_a_gap_and_the_next_ones_come(tmp_path: Path) -> None:
    with OpcuaServer(free_port(), tmp_path / "values.log", Options(long_bytes=1 << 20)) as server:
        async with running(tmp_path, opcua(server.port, "      message: 64KiB\n"), PRESS) as node:
            await until(lambda: node.source("press").gaps)
            await more_rows(node, 60)
            found = await node.stored()
    (gap,) = [each for each in gaps(found) if each["lost"] == "possible"]
    assert gap["kind"] == "unreadable"
    assert "more than 65536 bytes. Raise `message`" in gap["reason"]


_ALL = "[" + ", ".join(f'{{id: "nsu=urn:example:press;s=v{n}", topic: press/v{n}}}' for n in range(3)) + "]"


async def test_nodes_that_are_gone_are_named_and_the_others_go_on(tmp_path: Path, server: OpcuaServer) -> None:
    async with running(tmp_path, opcua(server.port, nodes=_ALL), PRESS) as node:
        await more_rows(node)
        server.kill()
        # Its namespaces have other numbers now.
        server.options.left_out, server.options.spaces = ("v1",), ("urn:example:other",)
        await asyncio.to_thread(server.start)
        await until(lambda: node.source("press").nodes_missing == 1)
        await more_rows(node)
        found = await node.stored()
    (gone,) = [each for each in gaps(found) if each["kind"] == "node"]
    assert gone["items"] == ["press/v1"]
    assert "BadNodeIdUnknown" in gone["reason"]
    assert {each.key for each in found[-2:]} <= {b"press/v0", b"press/v2"}


async def test_alarms_are_records_once_across_a_cut_and_a_restart(tmp_path: Path) -> None:
    nodes = '[{id: "nsu=urn:example:press;s=Press", events: true, topic: press/Press/events}]'
    with OpcuaServer(free_port(), tmp_path / "values.log", Options(events=True)) as server:
        async with Cutter(server.port).listening() as proxy:
            for _ in range(2):
                async with running(tmp_path, opcua(proxy.port, "", nodes), PRESS) as node:
                    await more_rows(node)
                    connections = node.source("press").connections
                    proxy.cut()
                    await until(lambda before=connections: node.source("press").connections > before)  # type: ignore[misc]
                    await more_rows(node)
                    found = await node.stored()
    events = [json.loads(each.payload) for each in found if each.key == b"press/Press/events"]
    numbers = [int(each["message"]) for each in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [each for each in gaps(found) if each["lost"] == "possible"] == []
    alarm = events[-1]
    assert (alarm["type"], alarm["source"], alarm["active"]) == ("OffNormalAlarmType", "Press", numbers[-1] % 2 == 1)
    assert alarm["source_node"] == "nsu=urn:example:press;s=Press"
    times = {number: time for name, number, time in server.values() if name == "events"}
    assert datetime.fromisoformat(alarm["source_time"]) == times[numbers[-1]]
    assert "weft.sent" in dict(found[-1].headers)


def test_events_that_a_server_had_no_room_for_are_a_gap() -> None:
    lost, kept = list[Any](), list[dict[str, Any]]()

    def store(_handle: int, _item: Item, payload: dict[str, Any], *_: object) -> None:
        kept.append(payload)

    space = Space(None, "press", OpcuaSource(url=("opc.tcp://h",), nodes=()))
    connection: Any = SimpleNamespace(
        node=SimpleNamespace(wall_clock=lambda: 10**18),
        status=SourceStatus("press", "opcua"),
        space=space,
        _store=store,
        _lost=lambda *what, handles: lost.append((what[0], what[2:], handles)),
    )
    subscription = Subscription(1, [Item("i=1", "press/events", last=5)], 1.0, 1.0, 0, [], 0, through=7)
    event = dict.fromkeys(EVENT_FIELDS, ua.Variant())
    event["type"] = ua.Variant(ua.NodeId(ua.Int32(ua.ObjectIds.EventQueueOverflowEventType)))
    event["source_time"] = ua.Variant(datetime(2001, 1, 1, tzinfo=UTC))
    event["server_time"] = ua.Variant(datetime(1601, 1, 1, tzinfo=UTC))
    OpcuaConnection._take_event(connection, subscription, 0, list(event.values()), b"", 0)
    assert lost == [("overflow", (5, 978_307_200 * 10**9), (0,))]
    assert kept == [{"type": "EventQueueOverflowEventType", "source_time": "2001-01-01T00:00:00.000000Z"}]
    assert subscription.refresh, "alarms among the lost events have other states now"


async def test_a_variable_is_named_by_its_path(tmp_path: Path, server: OpcuaServer) -> None:
    nodes = "[{path: Objects/2:Press/2:v0}, {path: Objects/Press/v1, topic: press/one}, {path: Objects/3:Press}]"
    async with running(tmp_path, opcua(server.port, nodes=nodes), PRESS) as node:
        await more_rows(node)
        found = await node.stored()
    assert {each.key for each in found} == {b"press/Press/v0", b"press/one", b"press/$gap"}
    (gone,) = gaps(found)
    assert gone["reason"] == "the server has no Objects/3:Press: nothing is called 3:Press there"


async def test_changes_within_the_deadband_do_not_count(tmp_path: Path, server: OpcuaServer) -> None:
    """The server's variables change by one; it compares with the value before."""
    nodes = "[" + ", ".join(
        f'{{id: "nsu=urn:example:press;s=v{n}", topic: press/v{n}, deadband: {size}}}' for n, size in ((0, 5), (1, 0.5))
    )
    async with running(tmp_path, opcua(server.port, nodes=f"{nodes}]"), PRESS) as node:
        await more_rows(node)
        rows = Counter(each.key for each in await node.stored())
    assert rows[b"press/v0"] == 1
    assert rows[b"press/v1"] > 20


def has_taken(node: Node, count: int) -> bool:
    return bool(node.json("status")["sources"]["press"]["messages"] > count)


@pytest.mark.slow
@pytest.mark.processes
async def test_a_node_that_is_killed_loses_nothing(tmp_path: Path, server: OpcuaServer) -> None:
    config = tmp_path / "edge.yaml"
    http = f'http: {{bind: "127.0.0.1:{free_port()}"}}'
    config.write_text(PRESS.format(name="data").replace("http: null", http) + opcua(server.port))
    for _ in range(8):
        node = await asyncio.to_thread(Node, "edge", config)
        await asyncio.to_thread(wait_until, partial(has_taken, node, 20))
        node.kill()
    async with running(tmp_path, opcua(server.port), PRESS) as last:
        # The first ones may be flagged: an earlier run may have stored them.
        await until(lambda: last.source("press").messages - last.source("press").duplicates > 30)
        found = await last.stored()
    assert assert_whole(server, found).get("in gaps") is None
    assert {(each["kind"], each["lost"]) for each in gaps(found)} == {("away", "none")}
    assert not found[-1].flags & Flag.DUPLICATE_SUSPECTED


# What a hostile server sends, without one.


def test_lengths_are_bounded_before_anything_is_kept() -> None:
    def chunk(size: int, kind: bytes = b"F") -> bytes:
        return b"MSG" + kind + size.to_bytes(4, "little") + bytes(max(0, min(size, 70_000) - 8))

    assert Frames(100_000).problem(chunk(100 << 20)[:8]).startswith("the server sent a chunk of 104857600 bytes")
    assert Frames(100_000).problem(chunk(3)).startswith("the server sent a chunk of 3 bytes")
    frames = Frames(100_000)
    assert not frames.problem(chunk(60_000, b"C"))
    assert "more than 100000 bytes" in frames.problem(chunk(60_000, b"C"))
    frames, data = Frames(100_000), chunk(60_000) * 3
    assert not any(frames.problem(data[at : at + 7]) for at in range(0, len(data), 7))


def test_sequence_numbers_turn_around_without_zero() -> None:
    assert following(0xFFFF_FFFF) == 1
    assert preceding(1) == 0xFFFF_FFFF
    assert ahead(1, 0xFFFF_FFFF) == 1
    assert ahead(0xFFFF_FFFF, 1) == -1
    assert ahead(7, 5) == 2


def numbered(sequence: int, second: int) -> ua.NotificationMessage:
    """A notification without values, published some seconds after ``SET``."""
    message = ua.NotificationMessage(SequenceNumber=ua.UInt32(sequence))
    message.PublishTime = SET + timedelta(seconds=second)
    return message


SET = datetime(2001, 1, 1, tzinfo=UTC)
SET_NS = 978_307_200 * 10**9


async def test_sequence_numbers_that_jump_are_named_and_end_nothing_but_the_subscription() -> None:
    lost, ended, asked = list[Any](), list[str](), list[int]()

    async def republished(_: Subscription, sequence: int) -> None:
        asked.append(sequence)

    connection: Any = SimpleNamespace(
        node=SimpleNamespace(wall_clock=lambda: SET_NS + 60 * 10**9),
        ended=asyncio.get_running_loop().create_future(),
        is_held=False,
        _republished=republished,
        _lost=lambda *what: lost.append(what),
        end=ended.append,
    )
    seven, nine = (SET_NS + second * 10**9 for second in (7, 9))
    subscription = Subscription(1, [], 1.0, 1.0, 0, [], 0, taken=5, through=seven)
    await OpcuaConnection._recover(connection, subscription, numbered(2_000_000_000, 9))
    await OpcuaConnection._recover(connection, subscription, numbered(2_000_000_002, 9))
    assert [each[1:] for each in lost] == [
        ("the server does not have 1999999994 notifications any more", seven, nine),
        ("the server does not have 2 notifications any more", seven, nine),
    ]
    assert asked == [2_000_000_000, 2_000_000_001], "a thousand at most are asked for"
    await OpcuaConnection._take(connection, subscription, numbered(3, 7))
    assert (ended, subscription.stale) == ([], ""), "it came before"
    for year in (1601, 2106):
        again = numbered(3, 7)
        again.PublishTime = datetime(year, 1, 1, tzinfo=UTC)
        await OpcuaConnection._take(connection, subscription, again)
        assert (ended, subscription.stale) == ([], ""), "a clock that was not set says nothing about it"
    await OpcuaConnection._take(connection, subscription, numbered(3, 8))
    assert ended == [subscription.stale] == ["the server gives a later notification the number of an earlier one"]


def test_a_server_cannot_announce_more_elements_than_it_sends() -> None:
    for kind in range(26):
        for length in (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff"):
            packed = bytes([0x80 | kind]) + length + bytes(4)
            with contextlib.suppress(ua.UaError, NotEnoughData):
                assert variant_from_binary(Buffer(packed)).Value in (None, [])
    for kind in (ua.VariantType.String, ua.VariantType.ByteString, ua.VariantType.XmlElement):
        with pytest.raises(NotEnoughData):
            variant_from_binary(Buffer(bytes([kind.value]) + (100 << 20).to_bytes(4, "little") + b"a"))


@pytest.mark.parametrize("year", [1601, 2106])
async def test_a_gap_of_a_server_whose_clock_is_not_set_has_times_of_the_node(year: int) -> None:
    lost, now, time = list[Any](), SET_NS, datetime(year, 1, 1, tzinfo=UTC)
    told = ua.DataValue(ua.Variant(1), SourceTimestamp=time)
    connection: Any = SimpleNamespace(
        node=SimpleNamespace(wall_clock=lambda: now),
        status=SourceStatus("press", "opcua"),
        space=SimpleNamespace(definitions=Types()),
        ended=asyncio.get_running_loop().create_future(),
        is_held=False,
        _is_refused=False,
        _present=set(),
        _store=lambda *_: None,
        _answered=lambda _: None,
        _republished=lambda *_: asyncio.sleep(0),
        _lost=lambda kind, _, since, until, **__: lost.append((kind, since, until)),
    )
    connection.node.ingest = SimpleNamespace(batch=SimpleNamespace(gathered=lambda: None))
    item = Item("i=1", "press/v")
    subscription = Subscription(1, [item], 1.0, 1.0, 0, [], 0, through=SET_NS - 1)
    message = numbered(1, 0)
    message.PublishTime = time
    await OpcuaConnection._take(connection, subscription, message)
    OpcuaConnection._take_value(connection, subscription, 0, told, b"", 0)
    now += 10**9
    message.SequenceNumber = ua.UInt32(3)
    await OpcuaConnection._recover(connection, subscription, message)
    full = ua.DataValue(ua.Variant(1), ua.StatusCode(0x480), SourceTimestamp=time)
    OpcuaConnection._take_value(connection, subscription, 0, full, b"", 0)
    assert lost == [("sequence", SET_NS, SET_NS + 10**9), ("overflow", SET_NS, SET_NS + 10**9)]


class EndlessServer:
    """Services of a server whose hierarchy is a circle, and whose answers have no end."""

    def __init__(self) -> None:
        self.asked = 0

    def _answer(self, node: str) -> list[ua.BrowseResult]:
        self.asked += 1
        reference = ua.ReferenceDescription(
            ReferenceTypeId=ua.NodeId(35),
            NodeId=ua.NodeId(node, 1),
            BrowseName=ua.QualifiedName(node, 1),
            NodeClass=ua.NodeClass.Object,
        )
        return [ua.BrowseResult(ContinuationPoint=b"more", References=[reference])]

    async def browse(self, _: ua.BrowseParameters) -> list[ua.BrowseResult]:
        return self._answer("a")

    async def browse_next(self, parameters: ua.BrowseNextParameters) -> list[ua.BrowseResult]:
        return [ua.BrowseResult()] if parameters.ReleaseContinuationPoints else self._answer("b")

    async def read_attributes(self, nodes: list[ua.NodeId], _: ua.AttributeIds) -> list[ua.DataValue]:
        return [ua.DataValue(ua.Variant(ua.QualifiedName("x", 1))) for _ in nodes]


async def test_endless_answers_and_circles_end_and_are_named() -> None:
    node = OpcuaNode(browse=OpcuaBrowse(below="Objects", depth=3))
    server = EndlessServer()
    space = Space(server, "press", OpcuaSource(url=("opc.tcp://a",), nodes=(node,)))
    assert await space.resolve([node]) == ([], [])
    assert server.asked <= 4 * 1001
    assert "references" in space.problems[0]


def test_clocks_that_were_never_set_are_not_believed() -> None:
    now = 1_796_000_000 * 10**9
    for time, is_believed in [
        (datetime(1601, 1, 1, tzinfo=UTC), False),
        (datetime(2106, 2, 7, tzinfo=UTC), False),
        (datetime(2026, 11, 1, tzinfo=UTC), True),
    ]:
        found = facts(Item("i=1", "press/a"), ua.DataValue(ua.Variant(1), SourceTimestamp=time), now, Types())
        assert ("source_time_implausible" not in found) == is_believed
        assert datetime.fromisoformat(found["source_time"]) == time


async def test_structures_and_enumerations_of_the_server_have_names(tmp_path: Path) -> None:
    nodes = '[{browse: {below: "Objects/Press", names: [stroke*, mode, v0]}}]'
    with OpcuaServer(free_port(), tmp_path / "values.log", Options(types=True, every_s=0.1)) as typed:
        for _ in range(2):
            async with running(tmp_path, opcua(typed.port, nodes=nodes), PRESS) as node:
                await more_rows(node, 6)
                found = await node.stored()
                assert node.source("press").last_error == ""
        payloads = {each.key.decode().rpartition("/")[2]: json.loads(each.payload) for each in found}
        stroke = {"name": "a", "mode": 1, "forces": [1.5, 2.5], "limits": {"Low": 0.0, "High": 9.0}}
        assert payloads["stroke"]["value"] == stroke
        assert payloads["strokes"]["value"] == [stroke, stroke]
        assert payloads["mode"]["value"] == 1
        assert (payloads["mode"]["name"], payloads["mode"]["range"]) == ("Running", [0.0, 1.0])


def test_bytes_that_are_no_structure_stay_bytes() -> None:
    kind, packed, types = ua.NodeId(1, 2), ua.NodeId(2, 2), Types()
    itself = ua.StructureField("again", DataType=kind, ValueRank=-1, IsOptional=False)
    many = ua.StructureField("many", DataType=kind, ValueRank=1, IsOptional=False)
    for one, body in [(itself, b""), (many, b"\xff\xff\xff\x7f"), (many, b"\x01\0\0\0" * 99), (many, b"\x01")]:
        types.add(kind, ua.StructureDefinition(DefaultEncodingId=packed, Fields=[one]))
        value = ua.ExtensionObject(packed, body)
        assert types.decoded(value) is value


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (ua.Variant(float("nan")), "nan"),
        (ua.Variant(b"ab"), "YWI="),
        (ua.Variant([1, 2, 3, 4], ua.VariantType.Int32, [2, 2]), [[1, 2], [3, 4]]),
        (ua.Variant(ua.LocalizedText("warm")), "warm"),
        (ua.Variant(2**64 - 1, ua.VariantType.UInt64), 2**64 - 1),
        (ua.Variant(ua.Range(0.0, 10.0)), {"Low": 0.0, "High": 10.0}),
    ],
)
def test_values_of_every_kind_are_json(value: Any, wanted: object) -> None:
    found = facts(Item("i=1", "press/a"), ua.DataValue(value), 0, Types())
    assert json.loads(json.dumps(found["value"])) == wanted


@pytest.mark.parametrize(("policy", "mode"), [("Basic256Sha256", "sign_and_encrypt"), ("Aes256Sha256RsaPss", "sign")])
async def test_a_server_is_trusted_by_its_fingerprint_and_read(tmp_path: Path, policy: str, mode: str) -> None:
    own = OpcuaSecurity(certificate=str(tmp_path / "s.pem"), key=str(tmp_path / "s-key.pem"), trusted="")
    await make_certificate(own, "server", "localhost")
    (tmp_path / "password").write_text("secret")
    options = Options(security=(own.certificate, own.key), user="weft:secret")
    with OpcuaServer(free_port(), tmp_path / "values.log", options) as server:
        security = f"{{policy: {policy}, mode: {mode}, certificate: own.pem, key: own.key, trusted: trusted.pem}}"
        more = f"      security: {security}\n      username: weft\n      password_file: password\n"
        config = tmp_path / "edge.yaml"
        config.write_text(PRESS.format(name="data") + opcua(server.port, more))

        def weft(*arguments: str) -> Result:
            return CliRunner().invoke(cli, ["edge", *arguments])

        shown = await asyncio.to_thread(weft, "trust", str(config), "press", "--fingerprint", "00")
        assert "another fingerprint" in str(shown.exception)
        found = str(shown.exception).partition("fingerprint: ")[2].partition(". ")[0]
        refused = await asyncio.to_thread(weft, "test-source", str(config), "press")
        assert f"certificate {found} is not trusted" in refused.output
        trusted = await asyncio.to_thread(weft, "trust", str(config), "press", "--fingerprint", found)
        assert "added to" in trusted.output
        read = await asyncio.to_thread(weft, "test-source", str(config), "press", "--json")
        assert {each["topic"] for each in json.loads(read.output)} == {f"press/Press/v{n}" for n in range(3)}
        listed = await asyncio.to_thread(weft, "browse", str(config), "press", "--below", "Objects/Press")
        assert '- {id: "nsu=urn:example:press;s=v0"}  # Int64, press/Press/v0' in listed.output
        async with running(tmp_path, opcua(server.port, more), PRESS) as node:
            await more_rows(node)
            assert_whole(server, await node.stored())


async def test_a_user_shows_a_certificate_and_one_that_the_server_does_not_know_is_refused(tmp_path: Path) -> None:
    made = {
        name: OpcuaSecurity(
            certificate=str(tmp_path / f"{name}.pem"), key=str(tmp_path / f"{name}-key.pem"), trusted=""
        )
        for name in ("server", "own", "user", "other")
    }
    for name, each in made.items():
        await make_certificate(each, name, "localhost")
    server, user = made["server"], made["user"]
    options = Options(security=(server.certificate, server.key), user_certificate=user.certificate)
    more = (
        "      security: {certificate: own.pem, key: own-key.pem, trusted: server.pem}\n"
        "      user: {certificate: user.pem, key: user-key.pem}\n"
    )
    with OpcuaServer(free_port(), tmp_path / "values.log", options) as press:
        source = opcua(press.port, more)
        async with running(tmp_path, source, PRESS) as node:
            await more_rows(node)
            assert_whole(press, await node.stored())
        for kind in ("certificate", "key"):
            Path(getattr(user, kind)).write_bytes(Path(getattr(made["other"], kind)).read_bytes())
        async with running(tmp_path, source, PRESS) as node:
            await until(lambda: bool(node.source("press").last_error))
            assert "BadUserAccessDenied" in node.source("press").last_error
            assert "Check the user, the password or certificate" in node.source("press").last_error


def signed(name: str, issuer: str, key: ec.EllipticCurvePrivateKey, *, days: int = 9, ca: bool | None = None) -> Any:
    """A certificate for the public half of a key of its own, or of the issuer's where it signs itself."""
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)]
    own = key if name == issuer else ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1]).public_key(own.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(NOW - timedelta(days=20))
    if name != issuer:
        hosts = [x509.DNSName("press-7.example.com"), x509.IPAddress(ip_address("192.0.2.7"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    return builder.not_valid_after(NOW + timedelta(days=days)).sign(key, hashes.SHA256())


@pytest.mark.parametrize(
    ("ca", "days", "host", "why"),
    [
        (True, 9, "Press-7.example.com", ""),
        (True, 9, "192.0.2.7", ""),
        (True, 9, "press-8.example.com", "is not among the hosts that it names: press-7.example.com, 192"),
        (False, 9, "press-7.example.com", "not the certificate of an authority"),
        (None, 9, "press-7.example.com", "not the certificate of an authority"),
        (True, -5, "press-7.example.com", "its authority in `trusted` is valid from"),
    ],
)
def test_only_an_authority_that_is_valid_vouches_for_a_server_and_its_host(
    ca: bool | None, days: int, host: str, why: str
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = signed("issuer", "issuer", key, days=days, ca=ca)
    offered = signed("server", "issuer", key)
    found = why_untrusted(offered, [issuer], NOW, host)
    assert why in found
    assert bool(found) is bool(why)
    assert why_untrusted(offered, [issuer, offered], NOW, "another") == "", "what is listed itself needs no authority"


async def test_a_password_that_is_not_text_is_named_without_it(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "password").write_bytes("geheim-p\xe4ss".encode("latin-1"))
    source = opcua(free_port(), "      username: weft\n      password_file: password\n")
    async with running(tmp_path, source, PRESS) as node:
        await until(lambda: bool(node.source("press").last_error))
        said = node.source("press").last_error
    assert said == f"{tmp_path}/password: expected a password in UTF-8. Write it there in that encoding"
    assert "geheim" not in caplog.text


async def test_a_subscription_of_another_run_of_the_server_is_not_taken_for_ones_own(
    tmp_path: Path, server: OpcuaServer
) -> None:
    """The library's server counts its subscriptions from the same number on each time."""
    async with running(tmp_path, opcua(server.port), PRESS) as node:
        await more_rows(node)
    server.kill()
    await asyncio.to_thread(server.start)
    async with Client(f"opc.tcp://127.0.0.1:{server.port}/") as other:
        theirs = await other.create_subscription(100, Nothing())
        async with running(tmp_path, opcua(server.port), PRESS) as node:
            await more_rows(node)
            found = await node.stored()
            sections = await asyncio.to_thread((tmp_path / "data/sources/press.subscription.json").read_bytes)
        assert json.loads(sections)["id"] != theirs.subscription_id
    assert_whole(server, found)
    (gap,) = [each for each in gaps(found) if each["lost"] == "possible"]
    assert gap["reason"].startswith("the server has restarted")


async def test_a_server_that_does_not_say_when_it_started_may_be_another_run(
    tmp_path: Path, server: OpcuaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Space.look

    async def without_start(self: Space) -> None:
        await look(self)
        self.started = 0

    monkeypatch.setattr(Space, "look", without_start)
    async with Cutter(server.port).listening() as proxy:
        async with running(tmp_path, opcua(proxy.port), PRESS) as node:
            await more_rows(node)
            connections = node.source("press").connections
            await proxy.away(0)
            await until(lambda: node.source("press").connections > connections)
            await more_rows(node)
            assert [each for each in gaps(await node.stored()) if each["lost"] == "possible"] == [], "the same session"
        async with running(tmp_path, opcua(proxy.port), PRESS) as node:
            await more_rows(node)
            (gap,) = [each for each in gaps(await node.stored()) if each["lost"] == "possible"]
    assert gap["reason"].startswith("the server does not say when it started")


@pytest.mark.parametrize(
    ("time", "is_flagged"),
    [
        (SET + timedelta(seconds=4), False),
        (SET + timedelta(seconds=5), True),
        (SET + timedelta(seconds=6), False),
        (datetime(1601, 1, 1, tzinfo=UTC), True),
    ],
)
async def test_a_value_that_a_server_sends_again_is_flagged_and_no_other(time: datetime, is_flagged: bool) -> None:
    status, taken = SourceStatus("press", "opcua"), list[int]()

    def store(*message: Any) -> None:
        taken.append(message[-1])

    connection: Any = SimpleNamespace(
        node=SimpleNamespace(wall_clock=lambda: 10**18),
        status=status,
        space=SimpleNamespace(definitions=Types()),
        _present={0},
        _store=store,
    )
    item = Item("i=1", "press/v", last=SET_NS + 5 * 10**9, is_first=False)
    subscription = Subscription(1, [item], 1.0, 1.0, 0, [], 0, through=SET_NS + 7 * 10**9)
    value = ua.DataValue(ua.Variant(1), SourceTimestamp=time)
    OpcuaConnection._take_value(connection, subscription, 0, value, b"", 0)
    assert bool(taken[0] & Flag.DUPLICATE_SUSPECTED) is is_flagged


class Nothing:
    """Takes no notice of changes."""


ALL = "[" + ", ".join(f'{{id: "nsu=urn:example:press;s=v{n}", topic: press/v{n}}}' for n in range(3)) + "]"


async def test_a_subscription_that_lacks_variables_is_not_resumed(
    tmp_path: Path, server: OpcuaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, requests = OpcuaConnection._asked, 0

    async def failing(self: OpcuaConnection, request: Any, answer: Any) -> Any:
        nonlocal requests
        requests += isinstance(request, ua.CreateMonitoredItemsRequest)
        if requests == 2 and isinstance(request, ua.CreateMonitoredItemsRequest):
            raise TimeoutError
        return await asked(self, request, answer)

    monkeypatch.setattr("weft.edge_node.sources.opcua_space.AT_A_TIME", 1)
    monkeypatch.setattr(OpcuaConnection, "_asked", failing)
    async with running(tmp_path, opcua(server.port, nodes=ALL), PRESS) as node:
        await more_rows(node)
        assert node.source("press").nodes == 3
        found = await node.stored()
    assert {record.key for record in found} >= {b"press/v0", b"press/v1", b"press/v2"}


async def test_nodes_that_a_server_lacks_are_looked_for_after_a_restart_of_the_node(
    tmp_path: Path, server: OpcuaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.edge_node.sources.opcua.MISSING_INTERVAL_S", 0.05)
    nodes = ALL[:-1] + ', {id: "nsu=urn:example:press;s=nothing", topic: press/nothing}]'
    file = tmp_path / "data/sources/press.subscription.json"
    async with running(tmp_path, opcua(server.port, nodes=nodes), PRESS) as node:
        await more_rows(node)
        before = file.stat().st_mtime_ns
        await more_rows(node)
        assert file.stat().st_mtime_ns == before, "a node that is refused each time costs no write"
    async with running(tmp_path, opcua(server.port, nodes=nodes), PRESS) as node:
        await until(lambda: node.source("press").nodes_missing == 1)
        assert node.source("press").nodes == 3


async def test_a_history_that_does_not_answer_ends_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: Any) -> int:
        raise TimeoutError

    monkeypatch.setattr(OpcuaConnection, "_filled", silent)
    with OpcuaServer(free_port(), tmp_path / "values.log", Options(history=True)) as server:
        source = opcua(server.port, "      queue: 3\n").replace("publishing: 50ms", "publishing: 300ms")
        async with running(tmp_path, source, PRESS) as node:
            await more_rows(node, 60)
            found = await node.stored()
            assert node.source("press").connections == 1
    assert any("did not answer" in each["reason"] for each in gaps(found) if each["kind"] == "filled")
