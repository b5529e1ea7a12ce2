"""An idempotency key: the same request stores nothing twice, also after the node was killed."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree
from typing import Any

import msgspec
import pytest

from tests.edge_node.servers.http.harness import HttpNode, running
from tests.edge_node.servers.http.test_access import basic, guarded
from tests.storage.segment_log.helpers import open_log
from weft.bounds import LOCAL, Owner, OwnerKind
from weft.config.limits import EdgeLimits
from weft.config.streams import State
from weft.edge_node.servers.http.idempotency import IdempotencyKeys, RememberedAnswer
from weft.edge_node.servers.http.part import Http
from weft.edge_node.servers.http.settings import HttpCounters, HttpSettings
from weft.protocols.errors import UnsupportedVersion
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogSettings

__all__ = ["guarded"]
PATH = "/v1/streams/telemetry/plant/a"
SETTINGS = LogSettings(segment_bytes=4 << 20, budget_bytes=64 << 20, tail_bytes=0)
OWNER = Owner(OwnerKind.ADDRESS, LOCAL)


async def test_the_same_request_is_stored_once_and_answered_alike(http: HttpNode) -> None:
    first = await http.post(PATH, b"1", Idempotency_Key="k-1")
    await http.post(PATH, b"other", Idempotency_Key="k-2")
    again = await http.post(PATH, b"1", Idempotency_Key='"k-1"')
    assert first[:2] == again[:2]
    assert "Idempotency-Replayed" not in first[2]
    assert again[2]["Idempotency-Replayed"] == "true"
    assert [record.payload for record in http.stored()] == [b"1", b"other"]


async def test_a_key_for_other_data_is_refused(http: HttpNode) -> None:
    await http.post(PATH, b"1", Idempotency_Key="k")
    for path, body in ((PATH, b"2"), (PATH + "/b", b"1")):
        status, answer, _ = await http.post(path, body, Idempotency_Key="k")
        assert status == 422
        assert "Idempotency-Key" in answer["detail"]
    assert len(http.stored()) == 1


async def test_headers_and_attributes_of_events_are_data_too(http: HttpNode) -> None:
    event = {"ce_specversion": "1.0", "ce_source": "/press", "ce_type": "measured", "Idempotency_Key": "e"}
    assert (await http.post(PATH, b"1", ce_id="1", **event))[0] == 200
    assert (await http.post(PATH, b"1", ce_id="1", **event))[2]["Idempotency-Replayed"] == "true"
    assert (await http.post(PATH, b"1", ce_id="2", **event))[0] == 422
    assert (await http.post(PATH, b"1", Idempotency_Key="h", Weft_Header_Unit="C"))[0] == 200
    assert (await http.post(PATH, b"1", Idempotency_Key="h", Weft_Header_Unit="F"))[0] == 422
    assert len(http.stored()) == 2


async def test_each_user_has_keys_of_its_own(guarded: tuple[Path, str]) -> None:
    folder, auth = guarded
    async with running(folder, ", anonymous: never", auth) as http:
        seqs = []
        for user in ("alice", "alice", "bob", "bob"):
            status, answer, fields = await http.post(
                "/v1/streams/telemetry/plant/b/x", b"1", Idempotency_Key="k", Authorization=basic(user)
            )
            assert status == 200, answer
            seqs.append((answer["first_seq"], "Idempotency-Replayed" in fields))
        assert seqs == [(0, False), (0, True), (1, False), (1, True)]


async def test_the_same_requests_at_the_same_time_are_stored_once(http: HttpNode) -> None:
    answers = await asyncio.gather(*(http.post(PATH, b"1", Idempotency_Key="k") for _ in range(20)))
    assert len({(status, answer["first_seq"]) for status, answer, _ in answers}) == 1
    assert len(http.stored()) == 1


async def test_keys_are_remembered_over_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as http:
        first = await http.post(PATH, b"[1,2]", Idempotency_Key="k", Content_Type="application/json")
    async with running(tmp_path) as http:
        again = await http.post(PATH, b"[1,2]", Idempotency_Key="k", Content_Type="application/json")
        assert first[:2] == again[:2]
        assert len(http.stored()) == 2
        assert http.node.part(Http).counters.http_keys == 1


async def test_whatever_a_crash_leaves_of_a_commit_the_same_request_is_stored_once(tmp_path: Path) -> None:
    """Each beginning of what one commit wrote: it has all records and their key, or neither."""
    messages = [f"{number:05d}" for number in range(200)]
    request: dict[str, Any] = {
        "body": json.dumps(messages).encode(),
        "Idempotency_Key": "k",
        "Content_Type": "application/json",
    }
    async with running(tmp_path / "first") as http:
        await http.post(PATH, b'"before"')
        copytree(tmp_path / "first", tmp_path / "crashed", ignore=ignore_patterns("*.sock", "lock"))
        (segment,) = (tmp_path / "first").rglob("*.seg")
        before = segment.read_bytes()
        assert (await http.post(PATH, **request))[0] == 200
        after = segment.read_bytes()
    first = next(at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)
    end = next(at for at in range(len(after), 0, -1) if after[at - 1] != before[at - 1])
    assert end - first > 1_000
    (crashed,) = (tmp_path / "crashed").rglob("*.seg")
    counts = set[int]()
    for cut in (first, first + 1, *range(first + 20, end, (end - first) // 20), end - 1, end):
        crashed.write_bytes(after[:cut] + before[cut:])
        log = open_log(OSFileSystem(), SETTINGS, directory=str(crashed.parent))
        keys = IdempotencyKeys(log, log.stream("weft-http"), HttpSettings(), HttpCounters(), time.time_ns)
        count = log.durable_end(log.stream("telemetry")) - 1
        assert count in ((0,) if keys.find(OWNER, "k") is None else (len(messages),)), f"cut at {cut - first}"
        counts.add(count)
        log.close()
    assert counts == {0, len(messages)}
    for cut in ((first + end) // 2, end):
        rmtree(tmp_path / "again", ignore_errors=True)
        copytree(tmp_path / "crashed", tmp_path / "again")
        (again,) = (tmp_path / "again").rglob("*.seg")
        again.write_bytes(after[:cut] + before[cut:])
        async with running(tmp_path / "again") as http:
            status, answer, fields = await http.post(PATH, **request)
            assert (status, answer["first_seq"], answer["count"]) == (200, 1, len(messages))
            assert ("Idempotency-Replayed" in fields) is (cut == end)
            await http.node.log.durable()
            assert [json.loads(record.payload) for record in http.stored()] == ["before", *messages]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000_000_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def keys_of(http: HttpNode, clock: Clock, settings: HttpSettings) -> IdempotencyKeys:
    return IdempotencyKeys(http.node.log, http.node.log.stream("weft-http"), settings, HttpCounters(), clock)


async def test_keys_are_forgotten_after_their_time(http: HttpNode, clock: Clock) -> None:
    settings = HttpSettings(state=State(idempotency_window_s=60))
    keys = keys_of(http, clock, settings)
    keys.note(OWNER, "k", RememberedAnswer(b"f", 1, ((3, 1),), 1))
    clock.now += 59 * 10**9
    assert keys.find(OWNER, "k") == RememberedAnswer(b"f", 1, ((3, 1),), 1)
    clock.now += 2 * 10**9
    assert keys.find(OWNER, "k") is None
    await http.node.log.durable()
    assert keys_of(http, clock, settings).find(OWNER, "k") is None


async def test_an_owner_forgets_its_own_keys_first(http: HttpNode, clock: Clock) -> None:
    settings = HttpSettings(limits=EdgeLimits(user_share=0.4), state=State(idempotency_keys=10))
    keys = keys_of(http, clock, settings)
    other = Owner(OwnerKind.USER, "alice")
    keys.note(other, "k", RememberedAnswer(b"a", 1, (), 1))
    for number in range(100):
        keys.note(OWNER, f"k{number}", RememberedAnswer(b"f", 1, (), 1))
    assert keys.find(other, "k") is not None
    assert [number for number in range(100) if keys.find(OWNER, f"k{number}")] == [96, 97, 98, 99]
    assert keys.find(OWNER, "k") is None, "another owner's key"
    await http.node.log.durable()
    again = keys_of(http, clock, settings)
    assert again.find(other, "k") is not None
    assert [number for number in range(100) if again.find(OWNER, f"k{number}")] == [96, 97, 98, 99]


async def test_keys_of_a_later_release_are_not_forgotten_and_what_is_damaged_is(http: HttpNode, clock: Clock) -> None:
    keys_of(http, clock, HttpSettings()).note(OWNER, "k", RememberedAnswer(b"f", 1, (), 1))
    log = http.node.log
    stream = log.stream("weft-http")
    log.append(stream, clock.now, [b"user bob"], [b"\x93\x01"])
    await log.durable()
    assert keys_of(http, clock, HttpSettings()).find(OWNER, "k") is not None
    log.append(stream, clock.now, [b"user bob"], [msgspec.msgpack.encode([2, {"digest": 1}])])
    await log.durable()
    with pytest.raises(UnsupportedVersion, match="later release"):
        keys_of(http, clock, HttpSettings())


async def test_what_was_stored_is_answered_again_when_the_stream_takes_it_no_more(tmp_path: Path) -> None:
    """A request whose answer was lost is sent again after the stream's settings have changed."""
    requests = (("loose/far/off", b"{"), ("loose/line/a", b"{"), ("loose", b"1"))
    loose = '  loose: {from: "line/#", payload: json, misfits: take}\n'
    async with running(tmp_path, more=loose) as http:
        first = [(await http.post(f"/v1/streams/{path}", body, Idempotency_Key=path))[:2] for path, body in requests]
    async with running(tmp_path, more=loose.replace("misfits: take", "misfits: refuse")) as http:
        again = [(await http.post(f"/v1/streams/{path}", body, Idempotency_Key=path))[:2] for path, body in requests]
        assert again == first
        assert {(await http.post(f"/v1/streams/{path}", body))[0] for path, body in requests} <= {400, 422}
