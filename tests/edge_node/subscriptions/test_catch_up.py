"""Catching up, over a log on the fake disk: nothing lost, doubled or out of order, whatever is published meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import SMALL, commit_all, open_log
from tests.support.waiting import until
from weft.config.streams import State
from weft.edge_node.sessions.backlog import Backlog
from weft.edge_node.sessions.records import StateCounters
from weft.edge_node.subscriptions import catch_up
from weft.edge_node.subscriptions.catch_up import READERS_MAX, CatchUp, ReadTurns
from weft.edge_node.subscriptions.message import LogRecord, Message, Page, ReadPage, Turn


class ListReader:
    """Takes so many messages, from the log and live."""

    name = "a test"
    owner = None

    def __init__(self) -> None:
        self.room = 1 << 20
        self.got: list[bytes] = []
        self.queue: list[bytes] | None = None
        self.is_live = False
        self.missing = 0

    @property
    def has_room(self) -> bool:
        return len(self.got) < self.room

    def wants(self, topic: bytes) -> bool:
        return topic == b"t"

    def read(self, stream: int, record: LogRecord) -> None:
        assert self.has_room
        self.got.append(record.payload)

    def lost(self, count: int) -> None:
        self.missing += count

    def joining(self) -> None:
        self.queue = []

    def live(self) -> None:
        assert self.queue is not None
        self.got += self.queue
        self.is_live = True


class Catching:
    def __init__(self) -> None:
        self.log = open_log(FakeFileSystem(), SMALL)
        self.streams = [self.log.stream(name) for name in ("one", "two")]
        self.backlog = Backlog(self.log, State(backlog_page_records=3), StateCounters())
        self.reader = ListReader()
        self.published: list[bytes] = []

    def publish(self, *payloads: bytes, stream: int = 0, topic: bytes = b"t") -> None:
        self.log.append(self.streams[stream], 5, [topic] * len(payloads), list(payloads))
        if topic != b"t":
            return
        self.published += payloads
        if self.reader.is_live:
            self.reader.got += payloads
        elif self.reader.queue is not None:
            self.reader.queue += payloads

    def begin(self, read_page: ReadPage | None = None) -> CatchUp:
        found = CatchUp(
            None,
            lambda: (self.reader, dict.fromkeys(self.streams, 0)),
            read_page or self.backlog.read,
            self.log,
            ReadTurns(self.log),
        )
        found.start()
        return found


async def test_reads_what_was_missed_and_then_is_live() -> None:
    catching = Catching()
    catching.publish(b"0", b"1", b"2", b"3", b"4")
    catching.publish(b"other", topic=b"unwanted")
    commit_all(catching.log)
    found = catching.begin()
    await until(lambda: catching.reader.is_live)
    assert catching.reader.got == [b"0", b"1", b"2", b"3", b"4"]
    assert found.level


async def test_what_is_not_durable_yet_is_read_when_it_is_and_what_follows_is_queued() -> None:
    catching = Catching()
    catching.publish(b"0", b"1")
    commit_all(catching.log)
    catching.publish(b"2", b"3")
    found = catching.begin()
    await until(lambda: catching.reader.queue is not None)
    catching.publish(b"4")
    assert not found.level
    assert not catching.reader.is_live
    commit_all(catching.log)
    await until(lambda: catching.reader.is_live)
    assert catching.reader.got == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_queue_that_was_thrown_away_is_read_instead() -> None:
    catching = Catching()
    catching.publish(b"0")
    found = catching.begin()
    await until(lambda: catching.reader.queue is not None)
    catching.publish(b"1", b"2")
    catching.reader.queue = None  # it did not fit
    found.fall_back()
    catching.publish(b"3")
    commit_all(catching.log)
    await until(lambda: catching.reader.is_live)
    assert catching.reader.got == [b"0", b"1", b"2", b"3"]


async def test_nothing_is_read_without_room() -> None:
    catching = Catching()
    catching.publish(*(b"%d" % number for number in range(10)))
    commit_all(catching.log)
    catching.reader.room = 4
    found = catching.begin()
    await until(lambda: len(catching.reader.got) == 4)
    assert found.positions[catching.streams[0]] == 4
    catching.reader.room = 100
    found.room()
    await until(lambda: catching.reader.is_live)
    assert catching.reader.got == catching.published


async def test_goes_on_where_it_was_stopped() -> None:
    catching = Catching()
    catching.publish(*(b"%d" % number for number in range(10)))
    commit_all(catching.log)
    catching.reader.room = 4
    found = catching.begin()
    await until(lambda: len(catching.reader.got) == 4)
    found.stop()
    catching.reader.room = 100
    found.room()
    await asyncio.sleep(0)
    assert len(catching.reader.got) == 4
    found.start()
    await until(lambda: catching.reader.is_live)
    assert catching.reader.got == catching.published


async def test_a_disk_that_refuses_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "RETRY_S", 0)
    catching, refusals = Catching(), [OSError("no"), OSError("no")]
    catching.publish(b"0", b"1")
    commit_all(catching.log)

    async def read(stream: int, seq: int, wants: Callable[[bytes], bool], turn: Turn) -> Page:
        if refusals:
            raise refusals.pop()
        return await catching.backlog.read(stream, seq, wants, turn)

    catching.begin(read)
    await until(lambda: catching.reader.is_live)
    assert catching.reader.got == [b"0", b"1"]


async def test_records_that_are_gone_are_told_of() -> None:
    catching = Catching()
    catching.publish(b"8")
    commit_all(catching.log)

    async def read(_stream: int, _seq: int, _wants: Callable[[bytes], bool], _turn: Turn) -> Page:
        return Page([LogRecord(0, b"t", b"8", 0, ())], 1, 7)

    catching.begin(read)
    await until(lambda: catching.reader.is_live)
    assert (catching.reader.missing, catching.reader.got) == (7, [b"8"])


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_published_meanwhile_comes_once_and_in_order(seed: int) -> None:
    chance, catching = random.Random(seed), Catching()
    numbers = iter(range(1000))

    def publish() -> None:
        stream = chance.randrange(2)
        catching.publish(*(b"%d:%d" % (stream, next(numbers)) for _ in range(chance.randrange(1, 6))), stream=stream)

    for _ in range(5):
        publish()
    catching.reader.room = 5
    found = catching.begin()
    for _ in range(60):
        step = chance.random()
        if step < 0.35:
            publish()
        elif step < 0.6:
            commit_all(catching.log)
        elif step < 0.8:
            catching.reader.room += chance.randrange(4)
            found.room()
        elif catching.reader.queue is not None and not catching.reader.is_live and step < 0.9:
            catching.reader.queue = None
            found.fall_back()
        await asyncio.sleep(0)
    catching.reader.room = 1 << 20
    found.room()
    commit_all(catching.log)
    await until(lambda: catching.reader.is_live)
    for stream in (b"0:", b"1:"):
        assert [each for each in catching.reader.got if each.startswith(stream)] == [
            each for each in catching.published if each.startswith(stream)
        ]


async def test_of_many_that_fall_behind_at_one_message_a_few_read_at_a_time() -> None:
    """Thousands of clients were one iteration of the event loop: 5 s for 4,000 of them."""
    catching = Catching()
    catching.publish(b"0", b"1")
    commit_all(catching.log)
    catching.publish(b"2")
    turns, readers, steps = ReadTurns(catching.log), [ListReader() for _ in range(100)], 0

    def counted() -> None:
        nonlocal steps
        steps += 1

    async def read(stream: int, seq: int, wants: Callable[[bytes], bool], turn: Turn) -> Page:
        counted()
        page = await catching.backlog.read(stream, seq, wants, turn)
        counted()
        return page

    def begin(reader: ListReader) -> tuple[ListReader, dict[int, int]]:
        counted()
        return reader, dict.fromkeys(catching.streams, 0)

    for reader in readers:
        CatchUp(None, partial(begin, reader), read, catching.log, turns).start()
    assert steps == 0, "nothing where they fall behind"
    for durable in (False, True):
        if durable:
            commit_all(catching.log)
        while not all(reader.is_live if durable else reader.queue is not None for reader in readers):
            steps = 0
            await asyncio.sleep(0)
            assert steps <= 4 * READERS_MAX
    assert all(reader.got == [b"0", b"1", b"2"] for reader in readers)


async def test_where_a_reader_begins_is_known_before_its_turn() -> None:
    catching = Catching()
    catching.publish(b"0", b"1")
    commit_all(catching.log)
    one, two = catching.streams
    found = CatchUp(
        None, lambda: (catching.reader, {one: 1}), catching.backlog.read, catching.log, ReadTurns(catching.log)
    )
    found.start()
    found.cover(Message(b"t", b"", 1, stream=two, seq=seq) for seq in (7, 9))
    assert found.positions == {one: 1, two: 7}
    found.stop()
    found.start()
    await until(lambda: catching.reader.got == [b"1"])
