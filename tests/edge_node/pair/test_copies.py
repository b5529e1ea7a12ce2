"""Copies that a peer writes: who may, what they keep, forget and bring to hubs, and how many there are."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import open_log, put, read_all
from tests.support.processes import weft
from weft.edge_node.check.streams import COPIES_MAX
from weft.edge_node.pair.copies import Copies, Copy, CopyLink, _read_about
from weft.edge_node.pair.take_over import CopySource
from weft.protocols.batch import decode_header
from weft.protocols.chunk_index import GapRange, LaneFlag, Mark
from weft.protocols.lane import Lane, NodeName, Origin
from weft.protocols.link import PROTOCOL_VERSION, Clock, Hello, LaneOpen, LaneOrigins, RefuseCode
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.replication.events import LaneTaken, LinkRefused
from weft.replication.runner import LinkSession
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogSettings, SegmentLog

BUDGET = 8 << 20
OWN = NodeName("default", "b"), 77


class Session:
    """What a connection tells the node at its other end."""

    def __init__(self) -> None:
        self.opened: dict[int, RangeSet] = {}
        self.acked: dict[int, RangeSet] = {}
        self.closed: dict[int, tuple[RefuseCode, str]] = {}
        self.refused: list[RefuseCode] = []

    def lane_opened(self, lane: int, held: RangeSet) -> None:
        self.opened[lane] = held

    def acknowledge(self, lane: int, ranges: RangeSet) -> None:
        self.acked.setdefault(lane, RangeSet()).update(ranges)

    def close_lane(self, lane: int, code: RefuseCode, message: str, advice: str) -> None:
        self.closed[lane] = code, f"{message}: {advice}"

    def refuse(self, code: RefuseCode, *_: str) -> None:
        self.refused.append(code)


def open_copies(folder: Path, peer: str | None = None) -> Copies:
    loop = asyncio.get_running_loop()

    def post(do: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(do)

    return Copies(OSFileSystem(), str(folder), BUDGET, OWN, wall_clock=lambda: 123, post=post, peer=peer)


@asynccontextmanager
async def started(folder: Path, peer: str | None = None) -> AsyncIterator[Copies]:
    copies = open_copies(folder, peer)
    await copies.start()
    try:
        yield copies
    finally:
        await copies.close()


def log_of(log_id: int = 5, *payloads: bytes) -> SegmentLog:
    log = open_log(FakeFileSystem(), log_id=log_id)
    log.stream("s")
    for payload in payloads:
        put(log, 1, payload)
    return log


async def connect(
    copies: Copies, log: SegmentLog, epoch: int, *, edge: str = "a", flags: int = 0, tenant: str = "default"
) -> tuple[CopyLink, Session]:
    link, session = CopyLink(copies), Session()
    hello = Hello(PROTOCOL_VERSION, tenant, edge, log.log_id, 9, 1, "weft", [])
    link.connected(cast("LinkSession", session))
    await link.open(hello)
    await link.open_lane(LaneOpen(1, tenant, edge, log.log_id, "s", epoch, [], ["t/#"], 1, flags))
    return link, session


async def send(link: CopyLink, session: Session, log: SegmentLog) -> None:
    """Bring everything behind what the copy said that it has."""
    seq = session.opened[1].end
    while batches := log.read(1, seq, 1 << 20):
        pairs = [(decode_header(batch), memoryview(batch)) for batch in batches]
        link.data(1, pairs)
        await link.room()
        seq = pairs[-1][0].end_seq
    assert link._copy is not None
    await link._copy.log.durable()


async def test_a_copy_is_the_log_over_restarts_and_goes_to_hubs_under_its_name(tmp_path: Path) -> None:
    log = log_of(5, b"one", b"two", b"three")
    async with started(tmp_path) as copies:
        link, session = await connect(copies, log, 3)
        assert list(session.opened[1]) == []
        link.add_origins(LaneOrigins(1, [Origin(4, 1, "f", "1", b"")]))
        await link.clock(Clock(5, 9, 1, 2, 3))
        await send(link, session, log)
        assert list(session.acked[1]) == [(0, 3)]
        link.marks(1000, [(1, 3)])
        await link.room()
        link.closed("gone")
    async with started(tmp_path) as copies:
        (copy,) = copies.open.values()
        assert copy.owner == NodeName("default", "a")
        assert copy.waiting() == {"s": 3}
        had = list[tuple[str, RangeSet]]()
        source = CopySource(copy, lambda _: True, lambda stream, ranges: had.append((stream, ranges)))
        (lane,) = source.lanes()
        assert (lane.identity, lane.flags, lane.topics) == (Lane("default", "a", 5, "s"), LaneFlag.RELAY, ("t/#",))
        assert (lane.origin(4), lane.clock(9)) == (Origin(4, 1, "f", "1", b""), Clock(5, 9, 1, 2, 3))
        state = source.states([1])[1]
        assert (list(state.held), state.gaps, state.mark) == ([(0, 3)], [], Mark(1000, 3))
        assert await source.read(1, 0, 1 << 20) == log.read(1, 0, 1 << 20)
        copy.forget("s", RangeSet([(0, 2)]))
        assert copy.waiting() == {"s": 1}


async def test_only_a_higher_epoch_may_write_and_an_earlier_connection_ends(tmp_path: Path) -> None:
    log = log_of(5, b"one", b"two")
    async with started(tmp_path) as copies:
        first, said = await connect(copies, log, 3)
        await send(first, said, log)
        with pytest.raises(LinkRefused) as refused:
            await connect(copies, log, 3)
        assert refused.value.code is RefuseCode.IDENTITY_CONFLICT
        second, session = await connect(copies, log, 4)
        assert said.refused == [], "an old copy would see now that it is one, and leave"
        put(log, 1, b"three")
        await send(second, session, log)
        assert said.refused == [RefuseCode.IDENTITY_CONFLICT]
        with pytest.raises(LinkRefused):
            await send(first, said, log_of(5, b"one", b"two", b"other"))
        first.closed("over")
        assert list(session.acked[1]) == [(2, 3)]
    async with started(tmp_path) as copies:
        with pytest.raises(LinkRefused):
            await connect(copies, log, 4)


async def test_what_every_hub_has_leaves_and_what_the_node_lost_stays(tmp_path: Path) -> None:
    log = log_of(5, b"one", b"two", b"three")
    async with started(tmp_path) as copies:
        link, session = await connect(copies, log, 3)
        await send(link, session, log)
        (copy,) = copies.open.values()
        await link.gap(1, GapRange(0, 1, GapReason.CORRUPTION))
        assert copy.waiting() == {"s": 3}
        await link.gap(1, GapRange(0, 2, GapReason.ABSENT))
        assert copy.waiting() == {"s": 1}
        await link.gap(1, GapRange(2, 100, GapReason.ABSENT))
        assert copy.waiting() == {}
        await copy.log.durable()
        assert list(session.acked[1]) == [(0, 100)]


async def test_a_copy_says_nothing_over_records_that_the_node_lost_and_names_them_with_the_reason(
    tmp_path: Path,
) -> None:
    log = log_of(5, b"one", b"two", b"three", b"four")
    lost = GapRange(1, 3, GapReason.CORRUPTION)
    async with started(tmp_path) as copies:
        link, session = await connect(copies, log, 3, flags=int(LaneFlag.TWO_DISKS))
        for number in (0, 3):
            batches = log.read(1, number, 1)
            if number == 3:
                await link.gap(1, lost)
            link.data(1, [(decode_header(batch), memoryview(batch)) for batch in batches])
        link.marks(1000, [(1, 4)])
        await link.room()
        (copy,) = copies.open.values()
        await copy.log.durable()
        assert list(session.acked[1]) == [(0, 4)]
        assert (copy.is_vouched, copy.complete_to()) == (False, None)
        link.closed("burnt")
    async with started(tmp_path) as copies:
        (copy,) = copies.open.values()
        assert copy.complete_to() is None
        source = CopySource(copy, lambda _: True, copy.forget)
        assert source.states([1])[1].gaps == [lost]
        source.released(1, RangeSet([(0, 4)]))  # the hub acknowledges the notice
        assert copy.complete_to() is None
        link, session = await connect(copies, log, 4, flags=int(LaneFlag.TWO_DISKS))
        await link.gap(1, GapRange(1, 3, GapReason.ABSENT))
        link.marks(2000, [(1, 4)])
        await link.room()
        await copy.log.durable()
        assert (copy.is_vouched, copy.complete_to()) == (True, 2000), "every hub has them"


async def test_a_damaged_copy_is_continued_by_a_new_one_and_stays_until_hubs_have_it(tmp_path: Path) -> None:
    log = log_of(5, *(random.Random(at).randbytes(2000) for at in range(60)))
    async with started(tmp_path) as copies:
        link, session = await connect(copies, log, 3)
        await send(link, session, log)
    (segment, *_) = sorted(tmp_path.glob("*/*.seg"))
    data = bytearray(segment.read_bytes())
    data[40_000] ^= 255
    segment.write_bytes(data)
    async with started(tmp_path) as copies:
        (damaged,) = copies.open.values()
        read_all(damaged.log, 1)
        await damaged.log.durable()
        assert not damaged.is_sound
        link, session = await connect(copies, log, 4)
        await send(link, session, log)
        assert [copy.waiting()["s"] for copy in copies.open.values()][1] == 60
        await copies.tidy()
        assert len(copies.open) == 2
        assert damaged.waiting()["s"] > 50, "what it still has stays for the hubs"
        damaged.forget("s", RangeSet([(0, 60)]))
        await copies.tidy()
        assert [each is damaged for each in copies.open.values()] == [False]
        assert not Path(damaged.path).exists()


async def test_a_full_copy_closes_the_lane_and_keeps_what_it_has(tmp_path: Path) -> None:
    chance = random.Random(1)
    async with started(tmp_path) as copies:
        log = open_log(FakeFileSystem(), log_id=5, settings=LogSettings())
        log.stream("s")
        link, session = await connect(copies, log, 3)
        for _ in range(200):
            put(log, 1, chance.randbytes(60_000))
            if 1 in session.closed:
                break
            batches = log.read(1, log.next_seq(1) - 1, 1 << 20)
            link.data(1, [(decode_header(batch), memoryview(batch)) for batch in batches])
            await link.room()
            (copy,) = copies.open.values()
            await copy.log.durable()
        assert session.closed[1][0] is RefuseCode.OVERLOADED
        assert "the copy is full" in session.closed[1][1]
        assert "give `weft edge take-over` at the peer" in session.closed[1][1]
        assert copy.log.stats().bytes_on_disk <= BUDGET
        assert copy.waiting()["s"] == session.acked[1].count()


@pytest.mark.parametrize(("edge", "log_id"), [("b", 5), ("a", 77)])
async def test_a_node_is_not_its_own_peer(tmp_path: Path, edge: str, log_id: int) -> None:
    async with started(tmp_path) as copies:
        with pytest.raises(LinkRefused, match="is this node itself, or has its name"):
            await connect(copies, log_of(log_id), 1, edge=edge)
        assert not copies.open


async def test_the_pairs_token_speaks_for_no_other_edge(tmp_path: Path) -> None:
    async def refusal(copies: Copies, edge: str = "a", tenant: str = "default") -> str:
        with pytest.raises(LinkRefused) as refused:
            await connect(copies, log_of(9), 1, edge=edge, tenant=tenant)
        return str(refused.value)

    async with started(tmp_path) as copies:
        assert "acme/a is not the peer of default/b, which is another node" in await refusal(copies, tenant="acme")
        assert copies.peer is None
        await send(*await connect(copies, log_of(5, b"one"), 1), log_of(5, b"one"))
    async with started(tmp_path) as copies:
        assert "not the peer of default/b, which is default/a, the first that" in await refusal(copies, "z")
        await connect(copies, log_of(6), 1)
        assert len(copies.open) == 2, "the peer has a new disk"
    async with started(tmp_path, "z") as copies:
        await connect(copies, log_of(9), 1, edge="z")
        assert "default/a is not the peer of default/b, which is default/z" in await refusal(copies)
    (tmp_path / "peer").write_bytes(b"\xff")
    async with started(tmp_path) as copies:
        assert "another node of tenant default" in await refusal(copies)


async def test_a_hostile_peer_makes_no_more_than_a_few_copies_and_no_lanes_of_others(tmp_path: Path) -> None:
    async with started(tmp_path) as copies:
        for log_id in range(1, 1 + COPIES_MAX):
            log = log_of(log_id, b"one")
            link, session = await connect(copies, log, 1)
            await send(link, session, log)
        with pytest.raises(LinkRefused, match="keeps 3 copies already") as refused:
            await connect(copies, log_of(50), 1)
        assert refused.value.code is RefuseCode.OVERLOADED
        _, session = await connect(copies, log_of(1), 2, flags=int(LaneFlag.RELAY))
        assert session.closed[1][0] is RefuseCode.UNAUTHORISED


async def test_a_node_with_a_fourth_disk_gets_the_place_of_a_copy_that_hubs_have(tmp_path: Path) -> None:
    async with started(tmp_path) as copies:
        for log_id in range(1, 1 + COPIES_MAX):
            log = log_of(log_id, b"one")
            link, session = await connect(copies, log, 1)
            await send(link, session, log)
            link.closed("burnt")
        await copies.tidy()
        with pytest.raises(LinkRefused, match="keeps 3 copies already"):
            await connect(copies, log_of(50), 1)
        next(iter(copies.open.values())).forget("s", RangeSet([(0, 1)]))
        await copies.tidy()
        await connect(copies, log_of(50), 1)
        assert [copy.log.log_id for copy in copies.open.values()] == [2, 3, 50]


# --- What explains the records of a copy, and what it says of itself


async def test_a_copy_without_the_file_beside_it_is_not_continued_and_goes_to_hubs(tmp_path: Path) -> None:
    log = log_of(5, b"one", b"two", b"three")
    async with started(tmp_path) as copies:
        link, session = await connect(copies, log, 3)
        await send(link, session, log)
        link.marks(1000, [(1, 3)])
        await link.room()
        (copy,) = copies.open.values()
        await copy.log.durable()
        assert copy.complete_to() == 1000
    (about,) = tmp_path.glob("*.about")
    data = bytearray(about.read_bytes())
    data[len(data) // 2] ^= 1
    about.write_bytes(data)
    async with started(tmp_path) as copies:
        (copy,) = copies.open.values()
        assert "its checksum does not match" in copy.damage
        assert not copy.is_sound
        assert copy.complete_to() is None
        assert copy.waiting(compared=True) == {}, "whether its numbers were compared is unknown"
        assert list(CopySource(copy, lambda _: True, lambda *_: None).states([1])[1].held) == [(0, 3)]
        link, session = await connect(copies, log, 4)
        await send(link, session, log)
        assert [each.waiting() for each in copies.open.values()] == [{"s": 3}, {"s": 3}]


async def test_a_copy_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    log = log_of(5, b"one")
    async with started(tmp_path) as copies:
        link, session = await connect(copies, log, 3)
        await send(link, session, log)
    folder = tmp_path / f"{5:016x}"
    shutil.rmtree(folder)
    folder.write_text("no folder")
    async with started(tmp_path) as copies:
        assert copies.open == {}
        assert list(copies.unopened) == [f"{5:016x}"]


async def test_a_copy_that_lags_says_up_to_when_it_has_everything(tmp_path: Path) -> None:
    log = log_of(5, b"one", b"two")
    async with started(tmp_path) as copies:
        link, session = await connect(copies, log, 3)
        (copy,) = copies.open.values()
        link.marks(500, [(1, 0)])
        await link.room()
        await copy.log.durable()
        assert copy.complete_to() == 500
        await send(link, session, log)
        assert copy.complete_to() == 500, "data say nothing of other records"
        link.marks(1000, [(1, 2)])
        await link.room()
        await copy.log.durable()
        assert copy.complete_to() == 1000
        opening = LaneOpen(2, "default", "a", log.log_id, "other", 3, [], [], 1, 0)
        await link.open_lane(opening)
        assert copy.complete_to() is None, "nothing is known of another stream"
        link.close_lane(2)
        assert copy.complete_to() == 1000


async def test_what_explains_records_is_on_the_disk_before_they_are_however_often_it_changes(tmp_path: Path) -> None:
    log = log_of(5)
    async with started(tmp_path) as copies:
        link, session = await connect(copies, log, 3)
        await link.room()
        for number in range(1, 30):
            put(log, 1, b"x")
            link.add_origins(LaneOrigins(1, [Origin(number, 1, "f", str(number), b"")]))
            batches = log.read(1, number - 1, 1 << 20)
            link.data(1, [(decode_header(batch), memoryview(batch)) for batch in batches])
            saving = asyncio.gather(copies.tidy(), link.room())
            await asyncio.sleep(0)
            link.marks(number, [(1, number)])
            await saving
            (copy,) = copies.open.values()
            assert copy.log.next_seq(1) == number
            again = _read_about(OSFileSystem(), copy.path + ".about")
            assert number in again.origins
        await copy.log.durable()
        assert list(session.acked[1]) == [(0, 29)]
        assert not session.refused


async def test_numbers_that_may_be_of_others_at_hubs_are_taken_over_by_order_alone(tmp_path: Path) -> None:
    log = log_of(5, b"one", b"two")
    async with started(tmp_path) as copies:
        link, session = await connect(copies, log, 3)
        await send(link, session, log)
        link.closed("restart")
        put(log, 1, b"three")
        link, session = await connect(copies, log, 4, flags=int(LaneFlag.UNCOMPARED))
        await send(link, session, log)
        link.marks(1000, [(1, 3)])
        await link.room()
        (copy,) = copies.open.values()
        await copy.log.durable()
        assert (copy.waiting(), copy.waiting(compared=True)) == ({"s": 3}, {"s": 2})
        assert CopySource(copy, lambda _: True, copy.forget).states([1])[1].mark is None
        let_go = list[list[tuple[int, int]]]()
        alone = CopySource(copy, lambda _: True, lambda _, ranges: let_go.append(list(ranges)), compared=True)
        state = alone.states([1])[1]
        assert (list(state.held), state.mark) == ([(0, 2)], None), "the hub's other record would make the mark true"
        assert [decode_header(batch).end_seq for batch in await alone.read(1, 0, 1 << 20)] == [1, 2]
        alone.released(1, RangeSet([(0, 3)]))
        assert (alone.brought, let_go) == (2, [[(0, 2)]]), "the hub may have another record under the last number"
    async with started(tmp_path) as copies:
        (copy,) = copies.open.values()
        assert copy.waiting(compared=True) == {"s": 2}
        link, session = await connect(copies, log, 5)
        link.marks(1, [(1, 3)])
        await link.room()
        assert copy.waiting(compared=True) == {"s": 3}, "it has compared its log now"
        await copy.log.durable()
        assert CopySource(copy, lambda _: True, copy.forget).states([1])[1].mark == Mark(1, 3)


async def test_a_hub_says_what_it_had_under_the_numbers_of_a_copy(tmp_path: Path) -> None:
    log = log_of(5, b"one", b"two", b"three")
    async with started(tmp_path) as copies:
        link, session = await connect(copies, log, 3)
        await send(link, session, log)
        (copy,) = copies.open.values()
        source = CopySource(copy, lambda _: True, copy.forget)
        (lane,) = source.lanes()
        lane.answered(LaneTaken(1))
        source.released(1, RangeSet([(0, 2)]))
        await asyncio.sleep(0)
        source.released(1, RangeSet([(2, 3)]))
        assert (source.had, source.brought) == (2, 1)


async def test_an_epoch_that_leaves_no_others_is_refused(tmp_path: Path) -> None:
    async with started(tmp_path) as copies:
        with pytest.raises(LinkRefused):
            await connect(copies, log_of(5, b"one"), (1 << 64) - 1)


def test_a_copy_can_be_queried_at_the_peer(tmp_path: Path) -> None:
    async def copied() -> str:
        log = log_of(5, b"one", b"two")
        async with started(tmp_path) as copies:
            await send(*await connect(copies, log, 3), log)
            (copy,) = copies.open.values()
            return copy.path

    done = weft("edge", "query", asyncio.run(copied()), "SELECT payload FROM s", "--csv")
    assert done.output.split() == ["payload", "one", "two"], done.exception


# --- Vouching: what a copy says of a node that is gone is true, whatever was before


class Vouching:
    """A node that acknowledges nothing alone, its hub and its peer, of which the peer is real."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.log = log_of(5, b"0")
        self.acked, self.hub = RangeSet(), RangeSet()
        """Numbers of records that devices know as stored, and that the hub has."""
        self.image: Path | None = None
        self.epoch = self.sent = self.vouched = 0
        self.link: CopyLink | None = None
        self.works_alone = False
        self.began = 1
        """End of the log at the latest connection."""
        self.lost = RangeSet()
        """Numbers that the node has lost under a notice."""

    async def start(self) -> None:
        self.copies = open_copies(self.folder)
        await self.copies.start()

    async def connect(self) -> None:
        if self.link is not None:
            self.link.closed("another connection")
        self.epoch += 1
        self.link, self.session = await connect(self.copies, self.log, self.epoch, flags=int(LaneFlag.TWO_DISKS))
        self.sent, self.began = self.session.opened[1].end, self.log.next_seq(1)

    async def publish(self) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            put(self.log, 1, b"x")

    async def send(self) -> None:
        if self.link is None or self.sent >= self.log.next_seq(1):
            return
        if self.lost.covers(self.sent, self.sent + 1):
            await self.link.gap(1, GapRange(self.sent, self.sent + 1, GapReason.CORRUPTION))
            self.sent += 1
        else:
            batches = self.log.read(1, self.sent, 1)
            self.link.data(1, [(decode_header(batch), memoryview(batch)) for batch in batches])
            self.sent = decode_header(batches[-1]).end_seq
        await self.settle()

    async def lose(self) -> None:
        """The node's disk loses a record; some were acknowledged before it had a peer."""
        if self.chance.random() < 0.3:
            number = self.chance.randrange(self.began)
            self.lost.add(number, number + 1)
            self.acked.add(number, number + 1)

    async def send_all(self) -> None:
        while self.link is not None and self.sent < self.log.next_seq(1):
            await self.send()

    async def mark(self) -> None:
        """The sender's rule: a mark leaves when everything below it was sent on the connection, and its number is an
        end that the log had since then."""
        if self.link is not None and self.sent >= self.began:
            self.link.marks(self.epoch, [(1, self.sent)])
            await self.settle()

    async def settle(self) -> None:
        assert self.link is not None
        await self.link.room()
        assert self.link._copy is not None
        await self.link._copy.log.durable()

    async def acknowledge(self) -> None:
        there = [] if self.link is None else list(self.session.acked.get(1, ()))
        self.acked.update([*there, *self.hub])
        if self.works_alone:
            self.acked.add(0, self.log.next_seq(1))

    async def replicate(self) -> None:
        self.hub.update(self.lost.missing(0, self.chance.randrange(self.log.next_seq(1) + 1)))
        for first, end in self.hub:
            if self.link is not None and first < self.sent:
                await self.link.gap(1, GapRange(first, min(end, self.sent), GapReason.ABSENT))

    async def cut(self) -> None:
        if self.link is not None:
            self.link.closed("cut")
            self.link = None

    async def stop(self) -> None:
        await self.cut()
        await self.copies.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def keep_image(self) -> None:
        await self.stop()
        self.image = self.folder.with_name(f"image-{self.chance.random()}")
        shutil.copytree(self.folder, self.image)
        await self.start()

    async def restore_image(self) -> None:
        if self.image is not None:
            await self.stop()
            shutil.rmtree(self.folder)
            shutil.copytree(self.image, self.folder)
            await self.start()

    async def lose_about(self) -> None:
        await self.stop()
        for about in self.folder.glob("*.about"):
            about.unlink()
        await self.start()

    def is_true(self) -> bool:
        """Whether what the peer says now is so: copies and hub have all that was acknowledged."""
        copies = list(self.copies.open.values())
        if not copies or not copies[-1].is_vouched:
            return True
        self.vouched += 1
        there = self.hub.copy()
        for copy in copies:
            there.update(part for number in copy.log.streams().values() for part in copy.log.ranges(number))
        return all(there.covers(first, end) for first, end in self.acked)

    async def live(self, steps: int) -> bool:
        """Live through a history; return whether all that the peer said was true."""
        self.folder.mkdir()
        await self.start()
        often = [self.publish, self.send, self.send_all, self.mark, self.acknowledge, self.connect, self.replicate]
        seldom = [self.lose, self.cut, self.restart, self.keep_image, self.restore_image, self.lose_about]
        is_true = True
        for _ in range(steps):
            do = self.chance.choice([*often, *often, *often, *seldom])
            try:
                await do()
            except LinkRefused:
                self.link = None  # an epoch that another copy knows, or no place for one more
            is_true = is_true and self.is_true()
        await self.stop()
        return is_true


async def test_a_peer_vouches_only_for_a_node_whose_every_acknowledged_record_is_there(tmp_path: Path) -> None:
    vouched = 0
    for seed in range(20):
        history = Vouching(tmp_path / str(seed), random.Random(seed))
        assert await history.live(30), f"seed {seed}"
        vouched += history.vouched
    assert vouched > 10, "else nothing was tested"


@pytest.mark.parametrize(
    "fault", ["marks do not count", "losses do not count", "the node works alone", "it outlives the connection"]
)
async def test_a_fault_in_vouching_is_found(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "marks do not count":
        monkeypatch.setattr(Copy, "is_vouched", property(lambda copy: copy._promised.issuperset(copy.about.offered)))
    elif fault == "losses do not count":
        monkeypatch.setattr(Copy, "lost", lambda *_: [])
    elif fault == "it outlives the connection":
        whole = set[str]()

        def is_vouched(copy: Copy) -> bool:
            whole.update(copy._whole)
            return bool(whole)

        monkeypatch.setattr(Copy, "is_vouched", property(is_vouched))
    for seed in range(40):
        history = Vouching(tmp_path / str(seed), random.Random(seed))
        history.works_alone = fault == "the node works alone"
        if not await history.live(40):
            return
    raise AssertionError(f"{fault}: no history shows it")
