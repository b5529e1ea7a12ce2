"""The simulation bites: without any one of these checks, one of a few histories breaks a promise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.simulation.fabric import simulate
from tests.storage.fakes import FakeFile
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.edge_node.links.source import SegmentLogSource
from weft.protocols.batch import decode_header
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import LaneState
from weft.replication.events import Acked
from weft.replication.runner.connection import SenderConnection
from weft.replication.sender import Sender
from weft.replication.sender_lanes import SenderLane
from weft.replication.source import Epochs, ReleaseLedger
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import StoreError

HISTORIES = 1000
Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def acknowledge_before_the_sync(patch: Patch) -> None:
    """A log does not wait for its disk."""
    patch.setattr(FakeFile, "sync", lambda _file: None)


def acknowledge_before_the_chunk(patch: Patch) -> None:
    """A hub takes a failed write for done."""
    create = ShardLog.create

    async def hopeful(log: ShardLog, n: int, data: bytes) -> None:
        with contextlib.suppress(StoreError):
            await create(log, n, data)

    patch.setattr(ShardLog, "create", hopeful)


def release_for_the_first_party(patch: Patch) -> None:
    """The log forgets what the link has and a function has not read."""
    patch.setattr(ReleaseLedger, "_release_common", lambda ledger, stream, ranges: ledger._release(stream, ranges))


def store_what_is_held(patch: Patch) -> None:
    """A hub stores a batch again that it has."""
    patch.setattr(LaneState, "missing_records", lambda _held, first, end: [(first, end)])


def claim_what_was_not_sent(patch: Patch) -> None:
    """A mark goes out ahead of the records that it covers, and the hub believes it."""
    patch.setattr(SenderLane, "take_mark", lambda lane, _held_back: lane._newest)

    def prove_marks(held: LaneState) -> None:
        marks = [mark for mark in (held.mark, held.newest_mark) if mark is not None]
        held.mark = max(marks, key=lambda mark: mark.time, default=None)

    patch.setattr(LaneState, "prove_marks", prove_marks)


def offer_the_same_epoch(patch: Patch) -> None:
    """An epoch is not kept: a node that was started again looks like one that was overtaken."""
    patch.setattr(Epochs, "propose", lambda _epochs: 1)


def send_before_the_end_is_kept(patch: Patch) -> None:
    """A link that lost its connection begins behind what it sent there."""
    opened = SenderLane.opened

    def forgetful(lane: SenderLane, held: RangeSet) -> None:
        opened(lane, held)
        if held:
            lane.sent.add(0, min(held.end + 3, max(lane.end, 1)))

    patch.setattr(SenderLane, "opened", forgetful)


def give_up_at_a_lost_connection(patch: Patch) -> None:
    """A link that was cut off does not come back."""
    run = SenderConnection.run

    async def last(connection: SenderConnection, socket: Any) -> Any:
        await run(connection, socket)
        await asyncio.Event().wait()

    patch.setattr(SenderConnection, "run", last)


def take_a_chunk_of_another_for_ours(patch: Patch) -> None:
    """A sequencer does not look who wrote the chunk that it meant to write."""

    async def trusting(self: Sequencer, drafted: Any) -> bool:
        draft, folded = drafted
        with contextlib.suppress(Exception):
            await self.log.create(draft.chunk.header.n, draft.data)
        return self._accept(folded)

    patch.setattr(Sequencer, "_place", trusting)


def release_what_was_sent(patch: Patch) -> None:
    """A log forgets what a link has read to send, before a hub has it."""
    feed = Sender.feed

    def hasty(sender: Sender, lane: int, batches: Sequence[bytes]) -> None:
        feed(sender, lane, batches)
        headers = [decode_header(batch) for batch in batches]
        sender._events.append(Acked(lane, RangeSet((header.base_seq, header.end_seq) for header in headers)))

    patch.setattr(Sender, "feed", hasty)


def believe_any_hub(patch: Patch) -> None:
    """A log does not know which numbers it gave to a hub."""
    patch.setattr(SegmentLogSource, "high_watermark", lambda _source, _hub, _lane: 1 << 62)


PLANTS: tuple[Plant, ...] = (
    acknowledge_before_the_sync,
    acknowledge_before_the_chunk,
    release_for_the_first_party,
    store_what_is_held,
    claim_what_was_not_sent,
    offer_the_same_epoch,
    send_before_the_end_is_kept,
    give_up_at_a_lost_connection,
    take_a_chunk_of_another_for_ours,
    release_what_was_sent,
    believe_any_hub,
)


def first_broken(histories: int, **options: float) -> tuple[int, BaseException] | None:
    """Return the first seed whose history breaks a promise."""
    for seed in range(histories):
        try:
            simulate(seed, **options)
        except BaseException as error:
            return seed, error
    return None


@pytest.mark.search(turns=4)
@pytest.mark.timeout(590)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    # Only a copy of a card needs it, and that one seldom.
    found = first_broken(HISTORIES, clones=1.0) if plant is believe_any_hub else first_broken(HISTORIES)
    assert found is not None, "no history needs this check"
    print(f"seed {found[0]}: {type(found[1]).__name__}: {str(found[1])[:200]}")
