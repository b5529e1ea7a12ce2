"""Acknowledgements that wait for two disks, and times in which they do not: with power cuts and lost disks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

import pytest

from tests.cloud_hub import virtual_time
from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import commit_all, open_log
from weft.edge_node.pair.second_disk import SecondDisk, TimesAlone
from weft.protocols.batch import decode_header
from weft.protocols.ranges import RangeSet
from weft.replication.events import LaneTaken
from weft.storage.segment_log import LogFull, LogSettings, SegmentLog

ALONE_AFTER_S = 2.0
SETTINGS = LogSettings(segment_bytes=64 << 10, budget_bytes=4 << 20, tail_bytes=0)
FILE = "/node/pair/alone"


class Site:
    """A node's log with its second disk, and a peer's copy, without what is between them."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.disk, self.peer_disk = FakeFileSystem(), FakeFileSystem()
        self.acked: list[tuple[int, int, int]] = []
        """(time, first, end) of each acknowledgement to a device."""
        self.is_away = self.has_lost_peer = False
        self.hub, self.lost, self.forgotten = RangeSet(), RangeSet(), RangeSet()
        """Numbers whose records a hub has, that the node has lost under a notice, and that the peer let go."""
        self.lost_twice = RangeSet()
        """Numbers that the node has lost, and of which the peer's disk, or a time alone, has left no other record."""
        self.open(refuses=refuses)
        self.copy = open_log(self.peer_disk, SETTINGS, log_id=self.log.log_id)
        self.meet()

    def open(self, *, refuses: bool = False) -> None:
        """Start the node."""
        self.log = open_log(self.disk, SETTINGS, directory="/node")
        self.stream = self.log.stream("s")
        self.times = TimesAlone(self.disk, FILE)
        self.second = SecondDisk(
            self.log, ALONE_AFTER_S, self.times, wall_clock=virtual_time.now_ns, answered=lambda: None, refuses=refuses
        )
        self.second.follow([self.stream])

    def meet(self) -> None:
        """Open the lane at the peer."""
        self.is_away = False
        self.second.opened(self.stream, LaneTaken(self.stream))
        self.second.copied(self.stream, RangeSet([(0, self.end)]))

    @property
    def end(self) -> int:
        number = self.copy.streams().get("s")
        return 0 if number is None else self.copy.durable_end(number)

    def publish(self, count: int) -> None:
        first = self.log.append(self.stream, 1, [b"k"] * count, [b"v" * 50] * count)

        def acknowledge(error: BaseException | None) -> None:
            if error is None:
                self.acked.append((virtual_time.now_ns(), first, first + count))

        self.log.on_durable(self.second.after(acknowledge))

    def send(self) -> None:
        """Bring the peer what it lacks; it is not durable there yet."""
        number = self.copy.streams().get("s")
        seq = 0 if number is None else self.copy.next_seq(number)
        if not self.is_away and seq < self.log.durable_end(self.stream):
            batches = [(decode_header(batch), batch) for batch in self.log.read(self.stream, seq, 1 << 20)]
            if batches:
                self.copy.append_stored("s", batches)

    def sync_peer(self) -> None:
        commit_all(self.copy)
        if not self.is_away:
            self.second.copied(self.stream, RangeSet([(0, self.end)]))
            # It acknowledges notices as well.
            self.second.copied(self.stream, RangeSet((gap.first, gap.end) for gap in self.log.gaps(self.stream)))

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.second.look()
        if not self.is_away:
            self.forgotten.update(self.second.kept(self.stream)[1])
        for _ in range(5):
            if self.second._writing is not None:
                await asyncio.wait([self.second._writing])
        if not self.is_away:
            self.has_lost_peer = False  # the node has noticed, and has written it down

    async def power_cut_here(self, chance: random.Random) -> None:
        await self.second.close()
        self.disk = self.disk.power_cut(chance)
        self.is_away = True
        self.open()

    def power_cut_there(self, chance: random.Random) -> None:
        self.peer_disk = self.peer_disk.power_cut(chance)
        self.copy = open_log(self.peer_disk, SETTINGS)
        self.is_away = True

    def replicate(self, chance: random.Random) -> None:
        """Bring some records to the hub."""
        end = self.log.durable_end(self.stream)
        first = chance.randint(0, end)
        part = RangeSet(self.log.ranges(self.stream).within(first, min(end, first + 5)))
        self.hub.update(part)
        self.log.release(self.stream, part)

    def damage(self, chance: random.Random) -> None:
        """Lose some records at the node; the hub takes the notice of that."""
        end = self.log.durable_end(self.stream)
        first = chance.randint(0, end)
        dropped = self.log.drop_backlog(self.stream, first, min(end, first + 5))
        commit_all(self.log)
        self.lost.update(dropped)
        there = self.kept_there(self.copy)
        self.lost_twice.update(RangeSet(part for run in dropped for part in there.missing(*run)))
        self.log.release(self.stream, self.lost)

    def kept_there(self, copy: SegmentLog) -> RangeSet:
        """Return the numbers whose records the peer or the hub has."""
        there = copy.ranges(copy.streams()["s"]) if "s" in copy.streams() else RangeSet()
        for part in self.forgotten:
            there.remove(*part)
        there.update(self.hub)
        return there

    def lose_peer(self) -> None:
        self.peer_disk = FakeFileSystem()
        self.copy = open_log(self.peer_disk, SETTINGS, log_id=self.log.log_id)
        self.forgotten = RangeSet()
        self.lost_twice.update(self.lost)
        self.is_away = self.has_lost_peer = True

    def check(self, chance: random.Random) -> None:
        """Whichever disk is lost now, the other one has what was acknowledged outside a time alone."""
        own = open_log(self.disk.power_cut(chance), SETTINGS, directory="/node")
        here = own.ranges(own.stream("s"))
        peer = open_log(self.peer_disk.power_cut(chance), SETTINGS)
        there = self.kept_there(peer)
        there.update(self.lost_twice)
        here.update(self.lost)
        here.update(self.hub)
        times = TimesAlone(self.disk.power_cut(chance), FILE).times
        for at, first, end in self.acked:
            assert here.covers(first, end), "acknowledged, and not on the own disk"
            if self.has_lost_peer:
                continue  # one disk is lost already, and the node cannot know yet
            # One that lasts covers all before it too: a peer that lost its copy has lost what was there.
            is_alone = any(until is None or since <= at <= until for since, until in times)
            assert is_alone or there.covers(first, end), f"acknowledged at {at}, and on one disk: {times}"


STEPS: tuple[str, ...] = ("publish", "commit", "send", "sync", "wait", "away", "meet", "cut here", "cut there")
STEPS += ("lose peer", "replicate", "damage", "check")
WEIGHTS = (8, 8, 8, 8, 4, 1, 3, 1, 1, 1, 2, 1, 2)


async def history(seed: int) -> Site:
    chance, site = random.Random(seed), Site()
    for step in chance.choices(STEPS, WEIGHTS, k=60):
        match step:
            case "publish":
                site.publish(chance.randint(1, 4))
            case "commit":
                commit_all(site.log)
            case "send":
                site.send()
            case "sync":
                site.sync_peer()
            case "wait":
                await site.pass_time(chance.choice([0.1, 1.0, 3.0]))
            case "away":
                site.is_away = True
            case "meet":
                site.meet()
            case "cut here":
                await site.power_cut_here(chance)
            case "cut there":
                site.power_cut_there(chance)
            case "lose peer":
                site.lose_peer()
            case "replicate":
                site.replicate(chance)
            case "damage":
                site.damage(chance)
            case _:
                await site.pass_time(0)
                site.check(chance)
    # When faults stop, everything has two disks again, and what was asked is answered.
    site.meet()
    for _ in range(4):
        commit_all(site.log)
        site.send()
        site.sync_peer()
        await site.pass_time(0.1)
    assert not site.second.lag()
    assert site.times.since is None
    assert not site.second.waiting
    site.check(chance)
    await site.second.close()
    return site


@pytest.mark.parametrize("part", range(4))
def test_nothing_acknowledged_with_two_disks_is_lost_with_one(part: int) -> None:
    acked = alone = 0
    for seed in range(part * 100, part * 100 + 100):
        site = virtual_time.run(history(seed))
        acked += len(site.acked)
        alone += len(site.times.times)
    assert acked > 500
    assert alone > 10, "the histories have no times alone"


async def waits(do: Callable[[Site], None]) -> Site:
    site = Site()
    site.publish(3)
    commit_all(site.log)
    assert site.acked == []
    do(site)
    return site


def test_an_acknowledgement_follows_the_disk_that_is_later() -> None:
    async def run() -> None:
        site = await waits(Site.send)
        assert site.acked == [], "it is not durable at the peer"
        site.publish(2)
        commit_all(site.log)
        site.sync_peer()
        assert [each[1:] for each in site.acked] == [(0, 3)], "the second is on its way"
        site.send()
        site.sync_peer()
        assert [each[1:] for each in site.acked] == [(0, 3), (3, 5)]
        await site.second.close()

    virtual_time.run(run())


def test_records_that_hubs_have_need_no_peer() -> None:
    async def run() -> None:
        site = await waits(lambda site: site.log.release(site.stream, RangeSet([(0, 3)])))
        site.second.look()
        assert [each[1:] for each in site.acked] == [(0, 3)]
        await site.second.close()

    virtual_time.run(run())


def test_records_that_a_full_log_deletes_as_soon_as_hubs_have_them_are_acknowledged() -> None:
    async def run() -> None:
        site = Site(refuses=True)
        site.is_away = True
        chance = random.Random(1)

        def acked(first: int, _: BaseException | None) -> None:
            site.acked.append((0, first, first + 1))

        def fill() -> None:
            while True:
                first = site.log.append(1, 1, [b"k"], [chance.randbytes(20_000)])
                site.log.on_durable(site.second.after(partial(acked, first)))
                commit_all(site.log)

        with pytest.raises(LogFull):
            fill()
        count = site.log.next_seq(1)
        site.log.release(1, RangeSet([(0, count)]))
        for _ in range(20):
            site.log.append(1, 1, [b"k"], [chance.randbytes(20_000)])
            commit_all(site.log)
        assert site.log.kept(1)[1].count() < count, "else the log has deleted nothing"
        site.second.opened(1, LaneTaken(1))  # a peer that is away again before it has said more
        site.second.look()
        assert [each[1] for each in site.acked] == list(range(count))
        await site.second.close()

    virtual_time.run(run())


def test_a_node_goes_on_alone_after_a_while_and_first_says_so_on_its_disk() -> None:
    async def run() -> None:
        site = await waits(lambda _: None)
        await site.pass_time(ALONE_AFTER_S / 2)
        assert site.acked == []
        await site.pass_time(ALONE_AFTER_S)
        assert [each[1:] for each in site.acked] == [(0, 3)]
        after_a_cut = TimesAlone(site.disk.power_cut(random.Random(1)), FILE)
        assert after_a_cut.since is not None
        assert after_a_cut.since <= site.acked[0][0] - int(ALONE_AFTER_S * 1e9)
        site.publish(1)
        commit_all(site.log)
        assert len(site.acked) == 2, "it waits no longer"
        site.send()
        site.sync_peer()
        await site.pass_time(0.1)
        assert site.times.since is None
        assert len(site.times.times) == 1
        site.publish(1)
        commit_all(site.log)
        assert len(site.acked) == 2, "it waits again"
        await site.second.close()

    virtual_time.run(run())


def damaged_site() -> Site:
    """A node whose disk has lost records 20 to 23 of the 60 that both disks had, under a notice."""
    site = Site()
    for _ in range(60):
        site.publish(1)
        commit_all(site.log)
        site.send()
        site.sync_peer()
    site.log.drop_backlog(site.stream, 20, 24)
    commit_all(site.log)
    return site


def test_a_peer_is_never_told_to_forget_what_the_node_has_lost() -> None:
    async def run() -> None:
        site = damaged_site()
        lost = [(gap.first, gap.end) for gap in site.log.gaps(site.stream)]
        assert lost
        site.log.release(site.stream, RangeSet(lost))  # a hub has acknowledged the notice
        site.second.look()
        assert list(site.second.kept(site.stream)[1]) == []
        site.log.release(site.stream, RangeSet([(0, 60)]))
        assert site.second.look() == {site.stream}
        for first, end in lost:
            assert not site.second.kept(site.stream)[1].within(first, end)
        assert site.second.kept(site.stream)[1].covers(0, lost[0][0])
        await site.second.close()

    virtual_time.run(run())


def test_the_end_of_a_time_alone_costs_no_look_at_all_streams_for_each_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The acknowledgements of all lanes come in one step, in which nothing else is done."""
    count = 100

    async def run() -> int:
        log = open_log(FakeFileSystem(), SETTINGS)
        streams = [log.stream(f"s{number}") for number in range(count)]
        times = TimesAlone(FakeFileSystem(), FILE)
        second = SecondDisk(log, ALONE_AFTER_S, times, wall_clock=virtual_time.now_ns, answered=lambda: None)
        second.follow(streams)
        for stream in streams:
            log.append(stream, 1, [b"k"], [b"v"])
        commit_all(log)
        second.go_alone("a test")
        await asyncio.sleep(0.1)
        assert second._writing is None
        looked, kept = list[int](), log.kept

        def look(stream: int) -> tuple[RangeSet, RangeSet]:
            looked.append(stream)
            return kept(stream)

        monkeypatch.setattr(log, "kept", look)
        for stream in streams:
            assert times.since is not None
            second.copied(stream, RangeSet([(0, 1)]))
        assert second._writing is not None
        await asyncio.wait([second._writing])
        assert times.since is None
        await second.close()
        return len(looked)

    assert virtual_time.run(run()) <= 4 * count


def test_a_peer_that_returns_empty_while_a_time_alone_ends_begins_another_one() -> None:
    async def run() -> None:
        site = await waits(lambda _: None)
        await site.pass_time(2 * ALONE_AFTER_S)
        site.send()
        site.sync_peer()
        site.second.look()
        assert site.second._writing is not None, "the end is being written"
        site.lose_peer()
        site.meet()
        await site.pass_time(0.1)
        assert site.times.since is not None
        await site.second.close()

    virtual_time.run(run())


def test_a_backlog_of_an_earlier_start_has_one_disk_until_the_peer_has_answered() -> None:
    async def run() -> None:
        site = Site()
        site.publish(3)
        commit_all(site.log)
        await site.power_cut_here(random.Random(1))
        assert site.log.ranges(site.stream).count() == 3
        await site.pass_time(ALONE_AFTER_S / 2)
        assert site.times.since is None
        await site.pass_time(ALONE_AFTER_S)
        await site.pass_time(0)
        assert site.times.since is not None
        await site.second.close()

    virtual_time.run(run())


def test_a_clock_that_was_set_back_shortens_no_time_alone() -> None:
    times = TimesAlone(FakeFileSystem(), FILE)
    times.begin(1000)
    times.end(10, 50)
    assert times.times == [(1000, 1050)]


def test_a_node_that_refuses_to_work_alone_waits_for_its_peer_however_long_it_is_away() -> None:
    async def run() -> None:
        site = Site(refuses=True)
        site.publish(3)
        commit_all(site.log)
        await site.pass_time(100 * ALONE_AFTER_S)
        assert site.acked == []
        assert site.times.since is None
        site.send()
        site.sync_peer()
        assert [each[1:] for each in site.acked] == [(0, 3)]
        site.lose_peer()
        site.meet()
        await site.pass_time(0.1)
        assert site.times.since is not None, "what was acknowledged has one disk"
        site.publish(1)
        commit_all(site.log)
        await site.pass_time(100 * ALONE_AFTER_S)
        assert len(site.acked) == 1
        site.send()
        site.sync_peer()
        await site.pass_time(0.1)
        assert site.times.since is None
        assert len(site.acked) == 2
        await site.second.close()

    virtual_time.run(run())


def test_times_alone_are_bounded_and_never_speak_of_less() -> None:
    times = TimesAlone(FakeFileSystem(), FILE)
    for at in range(100):
        times.begin(10 * at)
        times.begin(10 * at + 1)
        times.end(10 * at + 5)
    assert len(times.times) == 64
    assert times.times[0] == (0, 365)
    assert times.times[-1] == (990, 995)


def test_a_file_that_cannot_be_read_means_that_a_time_alone_may_last() -> None:
    disk = FakeFileSystem()
    TimesAlone(disk, FILE).begin(5)
    disk.content(FILE)[:] = b"nonsense"
    assert TimesAlone(disk, FILE).since == 0
