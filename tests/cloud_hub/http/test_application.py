"""The hub over real sockets: links in, JSON out."""

from __future__ import annotations

import asyncio
import base64
import random
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.cloud_hub.faulty_store import CALM, FaultyStore
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.network.test_http_server import closed, half_open
from tests.support.epochs import MemoryEpochs
from tests.support.tokens import create_token
from tests.support.waiting import until
from weft.cloud_hub.auth.access import _is_loopback
from weft.cloud_hub.hub import Hub
from weft.hub_api.answers import Problem, moment, parse_moment
from weft.hub_api.operations import document
from weft.hub_api.rights import Scope
from weft.network.http_server import IDLE_S_MAX
from weft.protocols import batch
from weft.protocols.batch import BatchHeader, ClockReading, ClockState, Flag
from weft.protocols.chunk_index import GapRange, Mark
from weft.protocols.lane import Origin, OriginKind
from weft.protocols.payloads import PayloadKind
from weft.protocols.segment import GapReason
from weft.protocols.shard.placement import shard_of
from weft.replication.events import LinkState
from weft.replication.runner import LinkIdentity
from weft.storage.object_store import open_store
from weft.storage.object_store.directory import MemoryStore

EDGE = LinkIdentity("default", "press-1", 0xABC, "test")
T = 1_700_000_000_000_000_000
STREAM = "/v1/streams/telemetry"


def records(
    first: int, payloads: list[bytes], headers: Any = None, flags: Any = None, origin: int = 0
) -> tuple[BatchHeader, bytes]:
    times = struct.pack(f"<{len(payloads)}q", *(T + first + i for i in range(len(payloads))))
    columns = batch.columns_from_lists(times, [b"plant/a/b/telemetry"] * len(payloads), payloads, headers, flags)
    data = batch.encode(1, first, columns, ClockReading(1, 1, ClockState.SYNCED), origin=origin)
    return batch.verify(data), data


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with running_hub(MemoryStore()) as running:
        yield running


async def deliver(hub: Hub, log: EdgeLog, end: int, identity: LinkIdentity = EDGE, token: str | None = None) -> None:
    async with running_link(hub, log, identity, token):
        await log.until_released(end)


async def test_what_an_edge_sends_can_be_read_by_offset(hub: Hub) -> None:
    log = EdgeLog()
    log.append(*records(0, ["wärme".encode(), b"\xff\x00"], {0: (("unit", "C"),)}, {1: Flag.DUPLICATE_SUSPECTED}))
    log.append(*records(2, [b"%d" % i for i in range(2, 50)]))
    await deliver(hub, log, 50)
    status, answer = await get(hub, f"{STREAM}/records?limit=3")
    shard = shard_of("default", "press-1", 2)
    assert status == 200
    first, second, third = answer["records"]
    assert first == {
        "shard": shard,
        "offset": 0,
        "edge": "press-1",
        "log": "0000000000000abc",
        "stream": "telemetry",
        "seq": 0,
        "time": "2023-11-14T22:13:20.000000000Z",
        "clock": "synced",
        "received": first["received"],
        "key": "plant/a/b/telemetry",
        "resent": False,
        "payload": "wärme",
        "headers": [["unit", "C"]],
    }
    assert "payload" not in second
    assert base64.b64decode(second["payload_base64"]) == b"\xff\x00"
    assert second["resent"] is True
    assert third["seq"] == third["offset"] == 2
    assert answer["next_offset"][str(shard)] == 3

    seen = []
    offset = 0
    while True:
        _, page = await get(hub, f"{STREAM}/records?shard={shard}&offset={offset}&limit=7")
        if not page["records"]:
            break
        seen += [record["offset"] for record in page["records"]]
        offset = page["next_offset"][str(shard)]
    assert seen == list(range(50))


@pytest.mark.parametrize("tables", [None, 0.05], ids=["a node without tables", "a node with tables"])
async def test_records_of_a_json_stream_are_shown_as_the_table_has_them(tmp_path: Path, tables: float | None) -> None:
    log = EdgeLog(payload=PayloadKind.JSON)
    log.append(*records(0, [b'{"t": 1}', b"text", b"\xff"]))
    async with running_hub(open_store(str(tmp_path)), table_interval_s=tables) as hub:
        await deliver(hub, log, 3)

        async def tiered() -> bool:
            return tables is None or (await get(hub, STREAM))[1]["table_rows"] == 3

        await until(tiered)
        _, answer = await get(hub, f"{STREAM}/records")
        found = [(record.get("payload"), record.get("payload_base64")) for record in answer["records"]]
        assert found == [('{"t": 1}', None), (None, "dGV4dA=="), (None, "/w==")]
        assert (await get(hub, STREAM))[1]["payload"] == "json"
        assert (await get(hub, f"{STREAM}/lanes"))[1]["lanes"][0]["payload"] == "json"


async def test_a_record_says_which_function_made_it(hub: Hub) -> None:
    log = EdgeLog()
    log.origins = {4: Origin(4, OriginKind.FUNCTION, "calm", "2", b"\x8a\x1f\x03\xc4\x00")}
    for first, origin in ((0, 0), (1, 4), (2, 5)):
        log.append(*records(first, [b"x"], origin=origin))
    await deliver(hub, log, 3)
    _, answer = await get(hub, f"{STREAM}/records")
    assert [record.get("origin") for record in answer["records"]] == [None, "calm@2#8a1f03c4", "#5"]


async def test_records_since_a_moment_start_with_what_was_committed_then(hub: Hub) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"old"] * 5))
    async with running_link(hub, log, EDGE):
        await log.until_released(5)
        between = time.time_ns()
        log.append(*records(5, [b"new"] * 5))
        await log.until_released(10)
    for since in (str(between), moment(between)):
        _, answer = await get(hub, f"{STREAM}/records?since={since}")
        assert [record["seq"] for record in answer["records"]] == list(range(5, 10))
    other = EdgeLog()
    other.append(*records(0, [b"of another"] * 3))
    async with running_link(hub, other, LinkIdentity("default", "saw-7", 7, "test")):
        await other.until_released(3)
        found = [
            (await get(hub, f"{STREAM}/records?{x}"))[1]["records"]
            for x in ("edge=saw-7", f"edge=saw-7&since={between}")
        ]
        assert [[each["payload"] for each in part] for part in found] == [["of another"] * 3] * 2
        shard, last = found[0][-1]["shard"], found[0][-1]["offset"]
        _, one = await get(hub, f"{STREAM}/records?edge=saw-7&shard={shard}&offset={last}")
        assert [each["offset"] for each in one["records"]] == [last]
        assert (await get(hub, f"{STREAM}/records?edge=none"))[1]["records"] == []
    _, everything = await get(hub, f"{STREAM}/records?since=0&edge=press-1")
    _, nothing = await get(hub, f"{STREAM}/records?since={time.time_ns()}")
    assert [len(everything["records"]), nothing["records"]] == [10, []]


async def test_an_answer_is_bounded_in_bytes_and_always_moves_on() -> None:
    async with running_hub(MemoryStore(), response_bytes_max=1000) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"x" * 400] * 10))
        log.append(*records(10, [b"x" * 5000] * 3))
        await deliver(hub, log, 13)
        shard = shard_of("default", "press-1", 2)
        offset, sizes = 0, []
        while offset < 13:
            _, page = await get(hub, f"{STREAM}/records?shard={shard}&offset={offset}&limit=100")
            sizes.append(len(page["records"]))
            offset = page["next_offset"][str(shard)]
        assert sizes == [3, 3, 3, 2, 1, 1]


async def test_a_stream_its_lanes_and_its_completeness(hub: Hub) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"a"] * 10))
    log.append(*records(15, [b"b"] * 5))
    log.gaps = [GapRange(10, 15, 2)]

    async def reported() -> bool:
        lanes = (await get(hub, f"{STREAM}/completeness"))[1]["lanes"]
        return lanes[0]["complete_up_to"] is not None and lanes[0]["newest_mark"]["seq"] == 20

    async with running_link(hub, log, EDGE, epochs=MemoryEpochs(7)):
        await log.until_released(20)
        await until(reported)
        _, complete = await get(hub, f"{STREAM}/completeness")
    [lane] = complete["lanes"]
    assert lane["edge"] == "press-1"
    assert lane["complete_below_seq"] == 20
    assert lane["gaps"] == [{"first": 10, "end": 15, "reason": "corruption"}]
    assert lane["holes"] == []
    assert abs(parse_moment(complete["complete_up_to"]) - time.time_ns()) < 20e9

    _, lanes = await get(hub, f"{STREAM}/lanes")
    [lane] = lanes["lanes"]
    assert lane["ranges"] == [{"first": 0, "end": 20}]
    assert lane["epoch"] == 8
    assert lane["topics"] == ["plant/{line}/{machine}/telemetry"]

    _, stream = await get(hub, STREAM)
    assert (stream["records"], stream["lanes"], stream["edges"]) == (15, 1, 1)
    assert stream["fields"] == ["line", "machine"]
    _, streams = await get(hub, "/v1/streams")
    assert [item["stream"] for item in streams["streams"]] == ["telemetry"]
    assert (await get(hub, "/v1/streams?tenant=other"))[1] == {"streams": [], "next_after": None}


@pytest.mark.parametrize("peers", [False, True])
async def test_what_another_cluster_may_have_is_incomplete_where_there_is_one(peers: bool) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"a"] * 10))
    log.gaps = [GapRange(10, 15, GapReason.ABSENT)]
    log.append(*records(15, [b"b"] * 5))

    async def reported() -> bool:
        lanes = (await get(node, f"{STREAM}/completeness"))[1]["lanes"]
        return lanes[0]["newest_mark"] is not None and lanes[0]["newest_mark"]["seq"] == 20

    async with running_hub(MemoryStore(), peers=peers) as node, running_link(node, log, EDGE):
        await log.until_released(20)
        await until(reported)
        _, answer = await get(node, f"{STREAM}/completeness")
        _, metrics = await get(node, "/metrics")
    [lane], series = answer["lanes"], "weft_hub_stream_complete_up_to_timestamp_seconds"
    reasons = [(each["reason"], each["why"]) for each in answer["held_back_by"]]
    value = next(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(series))
    if peers:
        assert lane["complete_below_seq"] == 10
        assert reasons == [
            ("absent_records", "absent: another cluster may have [10, 15), which the edge does not have any more")
        ]
    else:
        assert lane["complete_below_seq"] == 20
        assert reasons == []
    assert (answer["complete_up_to"] is None, lane["complete_up_to"] is None, value == 0) == (peers,) * 3


async def test_a_mark_from_the_future_promises_nothing_beyond_now(hub: Hub) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"a"]))
    states = log.states
    log.states = lambda lanes: {  # type: ignore[method-assign]
        lane: state._replace(mark=Mark(T * 2, 1)) for lane, state in states(lanes).items()
    }

    async def complete() -> bool:
        return (await get(hub, STREAM))[1].get("complete_up_to") is not None

    async with running_link(hub, log, EDGE):
        await until(complete)
    _, stream = await get(hub, STREAM)
    assert parse_moment(stream["complete_up_to"]) <= time.time_ns()


async def test_a_hub_that_starts_anew_goes_on_where_the_log_ends() -> None:
    store = MemoryStore()
    log = EdgeLog()
    log.append(*records(0, [b"a"] * 10))
    async with running_hub(store) as hub:
        await deliver(hub, log, 10)
    log.append(*records(10, [b"b"] * 10))
    log.released_ranges.remove(0, 10)
    async with running_hub(store) as hub:
        async with running_link(hub, log, EDGE, epochs=MemoryEpochs(5)):
            await log.until_released(20)
        _, stream = await get(hub, STREAM)
        assert stream["records"] == 20


async def test_a_second_node_with_the_same_log_is_told_about_the_conflict(hub: Hub) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"a"] * 3))
    async with running_link(hub, log, EDGE, epochs=MemoryEpochs(5)) as status:
        await log.until_released(3)
        async with running_link(hub, EdgeLog(), EDGE, epochs=MemoryEpochs(2)) as clone:
            await until(lambda: clone.state is LinkState.CONFLICT)
        assert "epoch 6" in clone.last_error
        assert status.state is LinkState.CONNECTED


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/nothing", 404),
        ("/v1/link", 400),
        ("/v1/streams/unknown", 404),
        ("/v1/streams/unknown/records", 404),
        (f"{STREAM}/records?offset=3", 400),
        (f"{STREAM}/records?shard=2", 503),
        (f"{STREAM}/records?shard=4096", 400),
        (f"{STREAM}/records?shard=0&offset=-1", 400),
        (f"{STREAM}/records?limit=0", 400),
        (f"{STREAM}/records?limit=10001", 400),
        (f"{STREAM}/records?limit={'9' * 5000}", 400),
        (f"{STREAM}/records?since={'9' * 5000}", 400),
        (f"{STREAM}/records?limit=²", 400),
        (f"{STREAM}/records?since=yesterday", 400),
    ],
)
async def test_errors_say_what_is_wrong_and_what_to_do(hub: Hub, path: str, status: int) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"a"]))
    await deliver(hub, log, 1)
    async with aiohttp.ClientSession() as session, session.get(hub.url + path) as response:
        answer = msgspec.json.decode(await response.read(), type=Problem)
    assert (response.status, response.content_type) == (status, "application/problem+json")
    assert (answer.status, answer.title, bool(answer.detail and answer.advice)) == (
        status,
        HTTPStatus(status).phrase,
        True,
    )
    assert answer.type.startswith("/v1/openapi.json#/"), "its type leads to the document that the hub serves"
    described: Any = document()
    for key in answer.type.partition("#/")[2].split("/"):
        described = described[key]
    assert described["content"].keys() == {response.content_type}


async def test_status_and_metrics_show_the_node(hub: Hub) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"a"] * 5))
    async with running_link(hub, log, EDGE):
        await log.until_released(5)
        _, status = await get(hub, "/v1/status")
        _, metrics = await get(hub, "/metrics")
    assert status["cluster_id"] == hub.cluster.cluster_id.hex()
    [link] = status["links"]
    assert (link["edge"], link["streams"], link["epoch"]) == ("press-1", ["telemetry"], 1)
    assert sum(shard["written"]["records"] for shard in status["shards"]) == 5
    assert "weft_hub_links 1.0" in metrics


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    path = str(tmp_path / "tokens.yaml")
    made = {
        "edge": create_token(path, "edge", Scope.EDGE, "acme", "press-1"),
        "reader": create_token(path, "reader", Scope.READER, "acme"),
        "stranger": create_token(path, "stranger", Scope.READER, "other"),
        "admin": create_token(path, "admin", Scope.ADMIN),
    }
    return {**made, "path": path}


async def test_tokens_decide_who_links_and_who_reads(tokens: dict[str, str]) -> None:
    async with running_hub(MemoryStore(), tokens=tokens["path"]) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"a"] * 5))
        async with running_link(hub, log, EDGE._replace(tenant="acme"), tokens["edge"]):
            await log.until_released(5)
        expected = {
            (None, STREAM): 401,
            ("nonsense", STREAM): 401,
            ("edge", STREAM): 403,
            ("reader", STREAM): 200,
            ("reader", f"{STREAM}?tenant=acme"): 200,
            ("reader", f"{STREAM}?tenant=other"): 403,
            ("stranger", STREAM): 404,
            ("admin", f"{STREAM}?tenant=acme"): 200,
            ("reader", "/v1/status"): 403,
            ("reader", "/metrics"): 403,
            (None, "/metrics"): 401,
            ("admin", "/v1/status"): 200,
            ("admin", "/metrics"): 200,
        }
        for (who, path), status in expected.items():
            token = tokens.get(who, who) if who else None
            assert (who, path, (await get(hub, path, token))[0]) == (who, path, status)


@pytest.mark.parametrize(
    ("identity", "token"),
    [
        (EDGE._replace(tenant="acme", edge="press-2"), "edge"),
        (EDGE._replace(tenant="other"), "edge"),
        (EDGE._replace(tenant="acme"), "reader"),
        (EDGE._replace(tenant="acme"), None),
    ],
)
async def test_a_link_needs_its_own_edges_token(
    tokens: dict[str, str], identity: LinkIdentity, token: str | None
) -> None:
    async with running_hub(MemoryStore(), tokens=tokens["path"]) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, identity, tokens[token] if token else None) as status:
            await until(lambda: status.state is LinkState.REFUSED)
        assert "token" in status.last_error
        assert (await get(hub, "/v1/streams?tenant=acme", tokens["admin"]))[1] == {"streams": [], "next_after": None}


async def test_a_page_in_a_browser_cannot_link(hub: Hub) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{hub.url}/v1/link", origin="https://evil.example")
    assert refused.value.status == 403


async def test_a_hub_has_a_limit_of_links() -> None:
    async with running_hub(MemoryStore(), links_max=1) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE):
            await log.until_released(1)
            async with running_link(hub, EdgeLog(), EDGE._replace(edge="press-2")) as status:
                await until(lambda: bool(status.last_error))
        assert "503" in status.last_error


def test_only_this_machine_counts_as_loopback() -> None:
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert _is_loopback(address)
    for other in ("10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "", None, "localhost"):
        assert not _is_loopback(other)


@pytest.mark.parametrize("time_ns", [0, 1, T, -1, 253_402_300_799 * 10**9])
def test_moments_are_readable(time_ns: int) -> None:
    text = moment(time_ns)
    assert text is not None
    assert abs(parse_moment(text) - time_ns) < 1000


def test_a_moment_beyond_every_calendar_is_a_number() -> None:
    assert moment(1 << 62) is not None
    assert moment(None) is None
    assert parse_moment("2023-11-14T22:13:20") == T
    assert parse_moment("2023-11-14T23:13:20+01:00") == T
    assert parse_moment("12345") == 12345


# --- A hub closes connections that ask nothing, and leaves links alone


async def test_a_request_whose_head_never_ends_is_cut_off_and_a_link_is_not() -> None:
    async with running_hub(MemoryStore()) as hub:
        now = [0.0]
        server = hub._listener.server
        server._monotonic = lambda: now[0]
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE) as link:
            await log.until_released(1)
            peer = await half_open(server)
            await until(lambda: server.connections == 2)
            now[0] = IDLE_S_MAX
            server.look()
            assert await closed(peer)
            log.append(*records(1, [b"b"]))
            await log.until_released(2)
            assert link.connections == 1


async def test_links_do_not_count_among_the_connections_of_their_address() -> None:
    """A proxy has those of a fleet."""
    async with running_hub(MemoryStore(), connections_per_address_max=1) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE) as link:
            await log.until_released(1)
            for _ in range(3):
                assert (await get(hub, "/v1/streams"))[0] == 200
            log.append(*records(1, [b"b"]))
            await log.until_released(2)
            assert link.connections == 1


async def test_idle_connections_beyond_the_setting_are_cut_off() -> None:
    async with running_hub(MemoryStore(), idle_connections_max=3) as hub:
        peers = await asyncio.gather(*(half_open(hub._listener.server) for _ in range(40)))
        await until(lambda: hub._listener.server.connections <= 3)
        assert (await get(hub, "/v1/streams"))[0] == 200
        for _, writer in peers:
            writer.close()


# --- When a hub says that it is not well, or not ready, to who has no token


async def test_a_hub_with_tokens_tells_probes_and_nothing_else(tmp_path: Path) -> None:
    tokens = str(tmp_path / "tokens")
    create_token(tokens, "operator", Scope.ADMIN)
    async with running_hub(MemoryStore(), tokens=tokens) as hub:
        assert await get(hub, "/healthz") == (200, "healthy\n")
        assert await get(hub, "/readyz") == (200, "ready\n")
        assert (await get(hub, "/metrics"))[0] == 401


async def test_a_store_that_does_not_answer_makes_it_not_ready_and_a_restart_would_not_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weft.cloud_hub.http.process.STORE_SILENCE_S", 0.5)
    monkeypatch.setattr("weft.cloud_hub.http.process.LOOK_AGE_S", 0.0)
    store = FaultyStore(MemoryStore(), random.Random(1), replace(CALM, latency_s=0.0))
    async with running_hub(store, shards=1) as hub:
        assert await get(hub, "/readyz") == (200, "ready\n")
        store.faults = replace(CALM, read=1.0, latency_s=0.0)
        while (answer := await get(hub, "/readyz"))[0] == 200:
            pass
        assert answer[0] == 503
        assert answer[1].startswith("not ready: the store has not answered for ")
        assert (await get(hub, "/healthz"))[0] == 200
        store.faults = replace(CALM, latency_s=0.0)
        while (await get(hub, "/readyz"))[0] == 503:
            pass


async def test_work_that_has_ended_is_a_reason_to_start_again() -> None:
    async with running_hub(MemoryStore(), shards=2) as hub:
        await hub.sequencers[1].close()
        assert await get(hub, "/healthz") == (503, "not healthy: the work on shard 1 has ended\n")
        assert (await get(hub, "/readyz"))[0] == 503
