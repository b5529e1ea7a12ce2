"""The simulation bites: each fault of the kind that it is there for breaks a promise in one of a few histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tests.cloud_hub.senders import Forger
from tests.cloud_hub.simulation import simulate, simulate_upgrade
from tests.support.later_fold import LATER
from tests.support.silence import silent_logs
from weft.cloud_hub.links.edge_link import EdgeLink
from weft.cloud_hub.shard.lane_session import LaneSession
from weft.protocols.lane import Lane
from weft.protocols.link import Hello
from weft.protocols.shard import lane_state
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.shard.snapshot import DecodedSnapshot
from weft.replication.attempts import Redirects
from weft.replication.runner import LinkSession
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import StoreError

HISTORIES = 60
Plant = Callable[[pytest.MonkeyPatch], None]


def acknowledge_what_others_gave_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaneSession, "acknowledged", lambda _, held: held.ranges.copy())


def take_a_gap_for_the_last_word(patch: pytest.MonkeyPatch) -> None:
    """Proof p2: a relay's records are acknowledged and thrown away."""
    patch.setattr(LaneState, "missing_records", lambda held, first, end: held.ranges.missing(first, end))
    patch.setattr(LaneState, "holds", lambda held, first, end: held.ranges.covers(first, end))


def count_absent_records_as_there(patch: pytest.MonkeyPatch) -> None:
    prove = LaneState.prove_marks

    def prove_marks(held: LaneState) -> None:
        prove(held)
        held.whole_mark = held.mark

    patch.setattr(LaneState, "prove_marks", prove_marks)


def believe_a_fact_less_than_an_absence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaneState, "missing_gap", lambda held, gap: held.ranges.missing(gap.first, gap.end))


def take_a_failed_write_for_done(patch: pytest.MonkeyPatch) -> None:
    create = ShardLog.create

    async def hopeful(log: ShardLog, n: int, data: bytes) -> None:
        try:
            await create(log, n, data)
        except StoreError:
            pass

    patch.setattr(ShardLog, "create", hopeful)


def read_on_without_a_look_at_the_watermark(patch: pytest.MonkeyPatch) -> None:
    """Proof p4: a reader that the collector has passed never sees anything new."""

    async def not_passed(*_: object) -> None:
        pass

    patch.setattr(ShardLog, "_check_not_passed", not_passed)


def send_everyone_on(patch: pytest.MonkeyPatch) -> None:
    """An edge that cannot reach the node which was named asks to stay, in vain."""
    take = EdgeLink.open

    async def open_link(link: EdgeLink, hello: Hello, session: LinkSession) -> None:
        await take(link, msgspec.structs.replace(hello, stay=False), session)

    patch.setattr(EdgeLink, "open", open_link)


def go_and_never_come_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Redirects, "_note_unreachable", lambda *_: None)


def make_snapshots_with_an_earlier_fold(patch: pytest.MonkeyPatch) -> None:
    """Proof p3: a node that skips what it does not know writes snapshots without it."""
    of = ShardState.of

    def believing(decoded: DecodedSnapshot, *how: Any) -> ShardState:
        return of(decoded._replace(head=decoded.head._replace(made_with=LATER.level)), *how)

    patch.setattr(ShardState, "is_whole", True)
    patch.setattr(ShardState, "of", believing)


def believe_who_claims_to_be_the_new_name(patch: pytest.MonkeyPatch) -> None:
    """Proof s5_rename: another edge takes one that only stopped out of completeness."""

    def new_name(lane: Lane, _: LaneState) -> Lane:
        return lane._replace(edge=Forger.NAME)

    def follows(_: str, epoch: int, begin: int, former: LaneState) -> bool:
        word = former.last_word
        return word is not None and epoch > former.epoch and begin == word.seq

    patch.setattr(lane_state, "new_name", new_name)
    patch.setattr(lane_state, "follows", follows)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with silent_logs():
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        acknowledge_what_others_gave_up,
        take_a_gap_for_the_last_word,
        count_absent_records_as_there,
        believe_a_fact_less_than_an_absence,
        take_a_failed_write_for_done,
        read_on_without_a_look_at_the_watermark,
        send_everyone_on,
        go_and_never_come_back,
        believe_who_claims_to_be_the_new_name,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_found(plant, simulate, monkeypatch)


def test_a_planted_fault_of_an_upgrade_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_found(make_snapshots_with_an_earlier_fold, simulate_upgrade, monkeypatch)


def check_that_it_is_found(plant: Plant, history: Callable[[int], object], patch: pytest.MonkeyPatch) -> None:
    plant(patch)
    with pytest.raises(BaseException) as found:
        _make_some(history)
    error = found.value.exceptions[0] if isinstance(found.value, BaseExceptionGroup) else found.value
    print(type(error).__name__, str(error)[:200], *found.value.__notes__)


def _make_some(history: Callable[[int], object]) -> None:
    for seed in range(HISTORIES):
        history(seed)
