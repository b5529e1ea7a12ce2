"""Links that mean harm: they take their share of a hub, and no lane of others."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.hostile.good_client import at_most
from tests.hostile.hub import GOOD, HOSTILE, NEIGHBOUR, GuardedHub
from tests.hostile.link_client import GoodLink, RawLink, encoded, link_to, records, sparse
from tests.support.processes import processor_s, weft
from tests.support.waiting import until, wait_until
from weft.protocols import batch
from weft.protocols.batch import COUNT_MAX
from weft.protocols.lane import Origin
from weft.protocols.link import (
    Ack,
    Canary,
    CanaryBack,
    Data,
    FrameType,
    Gap,
    LaneClosed,
    LaneOpen,
    LaneOpened,
    LaneOrigins,
    LastWords,
    Marks,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    Welcome,
    encode_frame,
)
from weft.protocols.segment import GapReason

pytestmark = pytest.mark.processes


# --- What a link sends is worked off in turns, and a hub holds no parts of frames: others hardly notice


UNDISTURBED_S = 1.0
"""Time in which the well-behaved link measures what is usual."""
MOST_S = 0.6
"""Longest wait for an acknowledgement during an attack: a few commits, on a machine with other work."""


async def opened(link: RawLink) -> None:
    assert isinstance(await link.greet(), Welcome)
    await link.open(link.opening())


def part_of_a_frame(link: RawLink, length: int) -> bytes:
    """A message that ends inside of a frame."""
    context = link.encoder._context
    body = struct.pack("<BI", FrameType.DATA, length) + bytes(length - 100)
    return context.compress(body) + context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


@pytest.mark.parametrize("greets", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_parts_of_frames_are_not_held(hub: GuardedHub, greets: bool) -> None:
    async with contextlib.AsyncExitStack() as stack:
        with GoodLink(hub) as good:
            before = hub.memory_bytes()
            for _ in range(8):
                link = await stack.enter_async_context(link_to(hub, level=19))
                if greets:
                    await opened(link)
                message = part_of_a_frame(link, (16 << 20) if greets else (80 << 20))
                assert len(message) < 20_000
                await link.send_raw(message)
                assert isinstance(await link.hear(Refuse), Refuse)
            assert hub.memory_bytes() - before < 192 << 20  # of two messages, however many links there are
            at_most(MOST_S * 4, good.take().longest)


@pytest.mark.slow
async def test_long_batches_are_charged_and_checked_beside_other_links(hub: GuardedHub) -> None:
    bomb = sparse(0, COUNT_MAX, b"k")
    assert len(bomb) < 8_000
    with GoodLink(hub) as good:
        await asyncio.sleep(UNDISTURBED_S)
        usual = good.take()
        async with link_to(hub, level=19) as link:
            await opened(link)
            await link.send(Data(1, bomb + sparse(COUNT_MAX, COUNT_MAX, b"k")))  # the second is past the window
            assert "window" in (await link.hear(Refuse)).message
        for _ in range(4):
            async with link_to(hub, level=19) as link:
                await opened(link)
                await link.deliver(bomb)
        waits = good.take()
    at_most(max(10 * usual.p99, MOST_S), waits.p99, usual, waits)


@pytest.mark.slow
async def test_a_message_of_many_small_frames_is_taken_in_turns(hub: GuardedHub) -> None:
    with GoodLink(hub) as good:
        await asyncio.sleep(UNDISTURBED_S)
        usual = good.take()
        async with link_to(hub, level=1) as link:
            await opened(link)
            frames = [Data(1, records(seq, payload=b"1")) for seq in range(16_000)]
            await link.send(*frames)
            while (await link.hear(Ack)).ranges != [(0, 16_000)]:
                pass
        async with link_to(hub, level=1) as link:
            await opened(link)
            gaps = b"".join(encode_frame(link.opening(2 + at, f"s{at}", ["x" * 30_000])) for at in range(250))
            context = link.encoder._context
            await link.send_raw(context.compress(gaps) + context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
            await asyncio.sleep(1)
        async with link_to(hub, NEIGHBOUR, level=1) as link:  # the other token has used up its budget
            await opened(link)
            for first in range(0, 20_000, 10_000):
                await link.send(*(Canary(first + at) for at in range(10_000)))
            await link.send(Canary(20_000), Ping(1))
            while (await link.hear(Pong)).sent != 1:
                pass
            await asyncio.sleep(1)  # as long as two marks wait
            await link.send(Ping(2))
            assert (await link.hear(CanaryBack)).number == 20_000, "only the last one is kept"
        waits = good.take()
    at_most(max(10 * usual.p99, MOST_S), waits.p99, usual, waits)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Marks, LastWords])
async def test_marks_without_end_are_read_later_and_go_with_their_link(
    hub: GuardedHub, kind: type[Marks] | type[LastWords]
) -> None:
    lanes = 400
    with GoodLink(hub) as good:
        await asyncio.sleep(UNDISTURBED_S)
        usual = good.take()
        async with link_to(hub, level=1) as link:
            assert isinstance(await link.greet(), Welcome)
            await link.open(*(link.opening(number, f"s{number}") for number in range(lanes)))
            marked = [(number, 0) for number in range(lanes)]
            for _ in range(40):  # three times what a token may have at once, in 40 kB
                await link.send(*(kind(time.time_ns(), marked) for _ in range(160)))
            await asyncio.sleep(UNDISTURBED_S)
            waits = good.take()
        await asyncio.sleep(2)  # the hub looks every second whether an edge that waits has left
        before = processor_s(hub.pid)
        await asyncio.sleep(3)
        assert processor_s(hub.pid) - before < 1.5, "what was sent is not worked off"
        refused = 'weft_hub_refusals_total{bound="frames of links",owner="edge evil/mallory"}'
        assert hub.metrics()[refused] > 0
    at_most(max(10 * usual.p99, MOST_S), waits.p99, usual, waits)


# --- A batch of some hundred bytes stands for no more rows than a table can take: it is refused at the door


def shared_key(count: int, key: bytes) -> bytes:
    return sparse(0, count, key)


def headers(count: int, pairs: int) -> bytes:
    times = struct.pack(f"<{count}q", *range(count))
    each = tuple(("", None) for _ in range(pairs))
    records = batch.columns_from_lists(times, [b"k"] * count, [b""] * count, dict.fromkeys(range(count), each))
    return encoded(0, records, level=19)


@pytest.fixture
def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacker's own encoder refuses nothing."""
    monkeypatch.setattr(batch, "check_expanded", lambda *_: None)


@pytest.mark.slow
@pytest.mark.usefixtures("unbounded")
async def test_what_would_be_terabytes_of_rows_is_refused_and_harms_nobody(hub: GuardedHub) -> None:
    bombs = {
        "a key too long": shared_key(1, b"k" * (batch.KEY_BYTES_MAX + 1)),
        "a key of 30 MiB for every record": shared_key(1_000_000, b"k" * (30 << 20)),
        "a key for every record": shared_key(1_000_000, b"k" * batch.KEY_BYTES_MAX),
        "headers": headers(10_000, 1024),
    }
    with GoodLink(hub) as good:
        for what, bomb in bombs.items():
            assert len(bomb) < 64 << 10, what
            async with link_to(hub, level=19) as link:
                await link.greet()
                await link.open(link.opening())
                answer = await link.deliver(bomb)
                assert isinstance(answer, LaneClosed | Refuse), what
        async with link_to(hub) as link:
            await link.greet()
            await link.open(link.opening())
            assert isinstance(await link.deliver(shared_key(500, b"k" * 60_000)), Ack)
        at_most(5, good.take().longest)
    assert hub.memory_bytes() < 1 << 30

    def rows() -> int:
        streams = hub.json("/v1/streams", hub.token("good"))["streams"]
        return int(streams[0]["table_rows"] or 0)

    wait_until(lambda: rows() == good.sent, what="the other tenant's table")
    hub.restart()
    wait_until(lambda: rows() == good.sent, what="the other tenant's table after a restart")


# --- A token has a few links, whose oldest makes room; and none once it is revoked


async def test_the_oldest_link_of_a_token_makes_room(tmp_path: Path) -> None:
    hub = GuardedHub(tmp_path, limits="links: 6, links_per_token: 3")
    hub.start()
    try:
        async with contextlib.AsyncExitStack() as stack:
            links = []
            for _ in range(8):
                links.append(await stack.enter_async_context(link_to(hub)))
                assert isinstance(await links[-1].greet(), Welcome)
                if len(links) > 3:
                    refusal = await links[-4].hear(Refuse)
                    assert refusal.code == RefuseCode.OVERLOADED
                    await links[-4].socket.close()
            for link in links[5:]:
                [answer] = await link.open(link.opening())
                assert isinstance(answer, LaneOpened)
            with GoodLink(hub) as good:
                assert good.sent >= 0
        assert hub.metrics()['weft_hub_refusals_total{bound="limits.links_per_token",owner="edge evil/mallory"}'] == 5
    finally:
        hub.stop()


async def test_links_of_a_revoked_token_end(hub: GuardedHub) -> None:
    with GoodLink(hub) as good:
        async with link_to(hub) as link, link_to(hub) as silent:
            await link.greet()
            await link.open(link.opening())
            assert isinstance(await link.deliver(records(0)), Ack)
            hub.revoke(*HOSTILE)
            refusal = await link.hear(Refuse)
            assert refusal.code == RefuseCode.UNAUTHORISED
            assert "revoked" in refusal.message
            answer = await silent.greet()
            assert isinstance(answer, Refuse)
        assert good.take().acknowledged


# --- An edge's token is for that edge's lanes alone


@pytest.mark.parametrize("node", [pytest.param(NEIGHBOUR, marks=pytest.mark.slow), GOOD])
async def test_a_token_opens_no_link_and_no_lane_of_another_edge(hub: GuardedHub, node: tuple[str, str]) -> None:
    async with link_to(hub) as link:
        link.tenant, link.edge = node
        refusal = await link.greet()
        assert isinstance(refusal, Refuse)
        assert refusal.code == RefuseCode.UNAUTHORISED
    async with link_to(hub) as link:
        assert isinstance(await link.greet(), Welcome)
        [closed] = await link.open(LaneOpen(1, *node, link.log_id, "telemetry", 1, []))
        assert isinstance(closed, LaneClosed)
        assert closed.code == RefuseCode.UNAUTHORISED
        [opened] = await link.open(link.opening(2))
        assert isinstance(opened, LaneOpened)
        assert isinstance(await link.deliver(records(0, lane=2), lane=2), Ack)


async def test_links_of_both_tenants_work_side_by_side(hub: GuardedHub) -> None:
    with GoodLink(hub) as good, GoodLink(hub, NEIGHBOUR) as neighbour:
        first, other = good.sent, neighbour.sent
        await until(lambda: good.sent > first + 3 and neighbour.sent > other + 3)
    hub.restart()
    with GoodLink(hub) as again:
        assert again.sent == good.sent


# --- What a thief of an edge's token did to the edge's lanes is over, or can be undone, when the token is revoked


LOG = 55
STREAM = "/v1/streams/telemetry"


def completeness(hub: GuardedHub) -> Any:
    return hub.json(f"{STREAM}/completeness", hub.token("evil"))


def said(hub: GuardedHub, edge: str = HOSTILE[1]) -> tuple[int, bool]:
    """The number of an edge's mark, and whether it is its last word."""
    lanes = hub.json(f"{STREAM}/lanes", hub.token("evil"))["lanes"]
    lane = next(lane for lane in lanes if lane["edge"] == edge)
    return (lane["mark"] or {"seq": 0})["seq"], lane["last_word"] is not None


def conflict_of(hub: GuardedHub) -> bool:
    return "conflict" in [each["reason"] for each in completeness(hub)["held_back_by"]]


async def test_a_lane_that_is_opened_and_left_holds_no_stream_back(hub: GuardedHub) -> None:
    with GoodLink(hub, NEIGHBOUR):
        wait_until(lambda: completeness(hub)["complete_up_to"], what="a moment")
        for log_id in (LOG, LOG + 1):
            async with link_to(hub, log_id=log_id) as link:
                await link.greet()
                [answer] = await link.open(link.opening())
                assert isinstance(answer, LaneOpened)
        before = completeness(hub)["complete_up_to"]
        wait_until(lambda: completeness(hub)["complete_up_to"] > before, what="a later moment")


async def test_an_edge_that_stopped_is_waited_for_whatever_another_one_says_of_its_log(hub: GuardedHub) -> None:
    """Its log's id is in every answer about lanes, and a gap `renamed` under it looks like its new name."""
    async with link_to(hub, NEIGHBOUR, log_id=LOG) as edge:
        await edge.greet()
        await edge.open(edge.opening(epoch=5))
        await edge.send(Data(1, records(0, 10)), LastWords(time.time_ns(), [(1, 10)]))
        await edge.hear(Ack)
        wait_until(lambda: said(hub, NEIGHBOUR[1]) == (10, True), what="the last word")
    before = completeness(hub)
    async with link_to(hub, log_id=LOG) as thief:
        await thief.greet()
        await thief.open(thief.opening(epoch=6))
        await thief.send(Gap(1, 0, 10, GapReason.RENAMED), Data(1, records(10)))
        await thief.hear(Ack)
        # As one that keeps its name, and as one that is renamed itself, to the name that it is after.
        for is_last in (False, True):
            now, lanes = time.time_ns(), [(1, 11)]
            await thief.send(LastWords(now, lanes, NEIGHBOUR[1]) if is_last else Marks(now, lanes))
            wait_until(lambda is_last=is_last: said(hub) == (11, is_last), what="the mark")  # type: ignore[misc]
            after = completeness(hub)
            assert sorted(lane["edge"] for lane in after["covers"]) == [HOSTILE[1], NEIGHBOUR[1]]
            assert after["complete_up_to"] == before["complete_up_to"], "it may be back with earlier records"


@pytest.mark.slow
async def test_the_highest_epoch_is_taken_back_by_an_operator(hub: GuardedHub) -> None:
    async with link_to(hub, log_id=LOG) as edge:
        await edge.greet()
        await edge.open(edge.opening(epoch=5))
        assert isinstance(await edge.deliver(records(0, 3)), Ack)
    async with link_to(hub, log_id=LOG) as thief:
        await thief.greet()
        await thief.open(thief.opening(epoch=(1 << 63) - 1))
    async with link_to(hub, log_id=LOG) as edge:
        await edge.greet()
        await edge.send(edge.opening(epoch=6))
        assert isinstance(await edge.hear(Refuse, LaneClosed), Refuse)
        await edge.socket.close()
    hub.renew(*HOSTILE)
    wait_until(lambda: conflict_of(hub), what="the conflict")
    adopted = await asyncio.to_thread(
        weft, "hub", "adopt", hub.config_path, HOSTILE[1], "--tenant", HOSTILE[0], "--yes"
    )
    assert adopted.exception is None, adopted.output

    async with link_to(hub, log_id=LOG) as edge:
        assert isinstance(await edge.greet(), Welcome)
        wait_until(lambda: not conflict_of(hub), what="the end of the conflict")
        [answer] = await edge.open(edge.opening(epoch=6))
        assert isinstance(answer, LaneOpened), answer
        assert isinstance(await edge.deliver(records(3, 3)), Ack)


async def test_a_gap_over_all_numbers_is_healed_by_the_records(hub: GuardedHub) -> None:
    async with link_to(hub, log_id=LOG) as thief:
        await thief.greet()
        await thief.open(thief.opening())
        await thief.send(Gap(1, 0, 1 << 62, 1))
        await thief.hear(Ack)
    hub.renew(*HOSTILE)
    async with link_to(hub, log_id=LOG) as edge:
        await edge.greet()
        [answer] = await edge.open(edge.opening(epoch=2))
        assert isinstance(answer, LaneOpened)
        assert answer.ranges == [], "records that the hub does not have"
        for first in range(0, 50, 10):
            ack = await edge.deliver(records(first, 10))
            assert isinstance(ack, Ack)
            assert ack.ranges[0] == (0, first + 10)
    hub.restart()

    def rows() -> int:
        return int(hub.json(STREAM, hub.token("evil"))["table_rows"] or 0)

    wait_until(lambda: rows() == 50, what="every record as a row, once")


# --- One token takes its share of a shard's lanes and state, however many links say so at once, and others have
# theirs


LANES = 1500
LINKS = 4


async def offer(link: RawLink, openings: list[LaneOpen]) -> list[LaneOpened | LaneClosed | Refuse]:
    assert isinstance(await link.greet(), Welcome)
    return await link.open(*openings)


@pytest.mark.slow
async def test_lanes_of_one_edge_are_its_share_and_no_more(hub: GuardedHub) -> None:
    with GoodLink(hub) as good:
        async with contextlib.AsyncExitStack() as stack:
            links = [await stack.enter_async_context(link_to(hub)) for _ in range(LINKS)]
            offers = [[link.opening(at, f"s{at}") for at in range(1, LANES + 1)] for link in links]
            answers = await asyncio.gather(*map(offer, links, offers))
        opened = [answer for of_link in answers for answer in of_link if isinstance(answer, LaneOpened)]
        closed = [answer for of_link in answers for answer in of_link if isinstance(answer, LaneClosed)]
        assert len(opened) == 1024
        assert {answer.code for answer in closed} == {RefuseCode.OVERLOADED}
        at_most(3, good.take().longest)
        assert hub.metrics()['weft_hub_refusals_total{bound="limits.lanes_per_edge",owner="edge evil/mallory"}'] > 1000
    hub.restart()
    with GoodLink(hub) as good, GoodLink(hub, NEIGHBOUR, log_id=9) as neighbour:
        await asyncio.sleep(0.3)
        assert good.take().acknowledged
        assert neighbour.take().acknowledged


@pytest.mark.parametrize(
    "topics",
    [
        [f"{number:03}/" + "x" * 16_000 for number in range(256)],
        pytest.param(["/".join(["+"] * 129)], marks=pytest.mark.slow),
        pytest.param(["plant/{" + "c" * 400_000 + "}/x"], marks=pytest.mark.slow),
        pytest.param(["plant/{line}{machine}"], marks=pytest.mark.slow),
        ["plant/{line}/{line}"],
    ],
)
async def test_patterns_that_cannot_be_close_their_own_lane_only(hub: GuardedHub, topics: list[str]) -> None:
    before = hub.store_bytes()
    async with link_to(hub, level=19) as link:
        answers = await offer(link, [link.opening(1, "odd", topics), link.opening(2, "telemetry")])
        assert isinstance(answers[0], LaneClosed)
        assert answers[0].code == RefuseCode.BAD_HELLO
        assert len(answers[0].message) < 400
        assert isinstance(answers[1], LaneOpened)
        assert isinstance(await link.deliver(records(0, lane=2), lane=2), Ack)
    assert hub.store_bytes() - before < 64 << 10


@pytest.mark.slow
async def test_topics_and_origins_of_an_edge_are_its_share(hub: GuardedHub) -> None:
    topics = [f"{number}/" + "x" * 15_000 for number in range(4)]
    origins = [Origin(number, 1, "n" * 255, "v" * 255, b"h" * 64) for number in range(1, 1025)]
    before = hub.memory_bytes()
    with GoodLink(hub) as good:
        async with contextlib.AsyncExitStack() as stack:
            links = [await stack.enter_async_context(link_to(hub, level=19)) for _ in range(6)]
            offers = [[link.opening(at, f"s{at}", topics) for at in range(1, 9)] for link in links]
            answers = await asyncio.gather(*map(offer, links, offers))
        opened = [answer for of_link in answers for answer in of_link if isinstance(answer, LaneOpened)]
        assert len(opened) == 4  # of 60 kB each, of 256 KiB
        async with link_to(hub, level=19) as link:
            await offer(link, [link.opening(at, f"o{at}") for at in range(1, 13)])
            refused = 0
            for at in range(1, 13):  # the hub reads each two seconds after the one before
                await link.send(LaneOrigins(at, origins))
                answer = await link.deliver(records(0, lane=at), lane=at)
                refused += isinstance(answer, LaneClosed)
            assert refused == 6  # six of 600 kB each, of 4 MiB
        at_most(3, good.take().longest)
    assert hub.memory_bytes() - before < 200 << 20
    assert hub.store_bytes() < 20 << 20


@pytest.mark.slow
async def test_lanes_that_come_again_with_other_texts_hold_nobody_up(hub: GuardedHub) -> None:
    """All lanes of an edge, each with as many patterns as it may have; then again, with others that find no room."""
    texts = [[chr(first + number % 26) for number in range(256)] for first in (ord("a"), ord("A"))]
    with GoodLink(hub) as good:
        for epoch in (1, 2, 3):
            async with link_to(hub, log_id=7) as link:
                lanes = range(1, 1025)
                answers = await offer(link, [link.opening(at, f"s{at}", texts[epoch % 2], epoch=epoch) for at in lanes])
                assert {isinstance(answer, LaneOpened) for answer in answers} == {epoch != 2}
        at_most(1, good.take().longest)
