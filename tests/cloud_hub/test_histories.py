"""Many histories of hub nodes over a store that loses, delays and misreports, each from one seed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tests.cloud_hub import simulation
from tests.cloud_hub.apart_histories import simulate_apart
from tests.cloud_hub.collecting import simulate_collection
from tests.cloud_hub.fabric import Forger
from tests.cloud_hub.members import PLANNED_ACK_S, simulate_members
from tests.cloud_hub.simulation import simulate, simulate_upgrade
from tests.cloud_hub.splitting import simulate_splits
from tests.support.later_fold import COUNTED, LATER, counting
from tests.support.silence import silent_logs
from tests.support.slices import SLICE
from weft.cloud_hub import cluster, splits
from weft.cloud_hub.cluster import READY, Membership, Owners, divide
from weft.cloud_hub.links.edge_link import EdgeLink
from weft.cloud_hub.shard.chunk_builder import Attempt, Drafted
from weft.cloud_hub.shard.collector import ShardCollector
from weft.cloud_hub.shard.lane_session import LaneSession
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shard_sessions import Canaries, ShardSessions
from weft.cloud_hub.splits import Apart, Splitter
from weft.protocols.chunk_index import FIRST_LEVEL, FoldRules
from weft.protocols.lane import Lane
from weft.protocols.link import Hello
from weft.protocols.shard import fold, lane_state
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.placement import ShardTree, Split
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.shard.snapshot import DecodedSnapshot
from weft.replication.attempts import Redirects
from weft.storage.chunk_log import Manifest, ShardLog
from weft.storage.object_store import StoreError
from weft.storage.presence import NodeEntry, Seen

# --- Many histories of competing nodes; ``python -m tests.nightly repeat simulation SEED`` repeats one


@pytest.mark.parametrize(
    "seed", [*range(0, 20, 10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 60, 10))]
)
def test_nothing_acknowledged_is_lost_or_doubled(seed: int) -> None:
    for offset in range(10):
        simulate(seed + offset)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (10, 20))])
def test_two_releases_on_one_store_make_one_fold(seed: int) -> None:
    counted = [COUNTED in simulate_upgrade(seed + offset).extensions for offset in range(10)]
    assert any(counted), "some histories wrote what the later release adds"


@pytest.mark.search
def test_nothing_acknowledged_is_lost_or_doubled_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=80, night=800):
        simulate(seed)


@pytest.mark.search
def test_two_releases_on_one_store_make_one_fold_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=60, night=400):
        simulate_upgrade(seed)


# --- that the search finds mistakes


def is_broken(history: Callable[[int], object]) -> bool:
    for seed in range(20):
        try:
            history(seed)
        except Exception:
            return True
    return False


def test_a_node_that_takes_an_unclear_write_for_a_chunk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trusting(self: Sequencer, drafted: Drafted) -> bool:
        draft, folded = drafted
        self._attempts[draft.chunk.header.nonce] = Attempt(draft.openings, len(draft.data))
        with contextlib.suppress(Exception):
            await self.log.create(draft.chunk.header.n, draft.data)
        return self._accept(folded)

    monkeypatch.setattr(Sequencer, "_place", trusting)
    assert is_broken(simulate)


def test_a_node_that_answers_canaries_which_came_behind_its_chunk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Canaries.settle

    def hasty(self: Canaries) -> None:
        self.placed = self.last
        settle(self)

    monkeypatch.setattr(Canaries, "settle", hasty)
    assert is_broken(simulate)


def test_a_release_that_writes_what_its_level_does_not_allow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = {COUNTED: counting(FIRST_LEVEL)}
    monkeypatch.setattr(simulation, "LATER", FoldRules(LATER.level, hasty))
    assert is_broken(simulate_upgrade)


# --- Many histories of splits; ``python -m tests.nightly repeat shard_splits SEED`` repeats one


HISTORIES = 100
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def quiet() -> Iterator[None]:
    with silent_logs():
        yield


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 200, 20))])
def test_a_split_loses_and_doubles_nothing(seed: int) -> None:
    found = [simulate_splits(seed + offset) for offset in range(20)]
    assert any(each["moved"] for each in found), "some lanes have records in two shards"


@pytest.mark.usefixtures("quiet")
@pytest.mark.search
def test_a_split_loses_and_doubles_nothing_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=200, night=100_000):
        simulate_splits(seed)


# --- that the search finds mistakes: each safety check is taken away once


def take_moved_lanes_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardSessions, "refuse_moved", lambda *_: None)
    patch.setattr(fold, "_check_here", lambda *_: None)


def write_before_the_shard_has_begun(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        pass

    async def empty(log: ShardLog, only: frozenset[tuple[str, str]] | None) -> ShardState:
        return ShardState(log.cluster.cluster_id, log.shard, log.rules, only)

    patch.setattr(Splitter, "begin", nothing)
    patch.setattr(ShardLog, "_begin", empty)


def begin_without_a_look_at_the_log(patch: pytest.MonkeyPatch) -> None:
    """The state of an attempt is believed, even if another chunk got its number."""
    seal = Splitter._seal

    async def believing(splitter: Splitter, log: ShardLog, state: ShardState, shard: int, bit: int) -> None:
        await seal(splitter, log, state, shard, bit)
        listed = await log.store.list(f"shard-{shard}/snapshot/")
        n, nonce = listed[-1].key.rpartition("/")[2].split("-")
        state.splits.append(Split(shard, bit, int(n), int(nonce, 16)))

    async def following(splitter: Splitter, log: ShardLog, state: ShardState, shard: int) -> Split | None:
        await follow(splitter, log, state, shard)
        return await follow(splitter, log, state, shard)

    follow = Splitter._next
    patch.setattr(Splitter, "_seal", believing)
    patch.setattr(Splitter, "_next", following)


def begin_with_nothing(patch: pytest.MonkeyPatch) -> None:
    def nothing(state: ShardState, split: Split, created: int, footer_crc: int) -> ShardState:
        new = ShardState(state.cluster_id, split.shard, state.rules)
        new.n, new.created, new.footer_crc, new.fold_level = split.n, created, footer_crc, state.fold_level
        return new

    patch.setattr(ShardState, "moved_half", nothing)


def store_the_state_after_the_seal(patch: pytest.MonkeyPatch) -> None:
    """Who dies in between leaves a shard that cannot begin."""
    held: dict[str, Any] = {}
    put, create = ShardLog.put_snapshot, ShardLog.create

    async def later(log: ShardLog, n: int, nonce: int, data: bytes) -> str:
        if log.split is None:
            return await put(log, n, nonce, data)
        held["n"], held["nonce"], held["data"], held["log"] = n, nonce, data, log
        return ""

    async def first(log: ShardLog, n: int, data: bytes) -> None:
        await create(log, n, data)
        if held.get("n") == n and held["log"].halved.shard == log.shard:
            reported = dict(held)
            held.clear()
            await put(reported["log"], reported["n"], reported["nonce"], reported["data"])

    patch.setattr(ShardLog, "put_snapshot", later)
    patch.setattr(ShardLog, "create", first)


def split_in_any_order(patch: pytest.MonkeyPatch) -> None:
    children = ShardTree.children
    patch.setattr(ShardTree, "children", lambda tree, shard: children(tree, shard)[::-1])


@pytest.mark.usefixtures("quiet")
@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        take_moved_lanes_again,
        write_before_the_shard_has_begun,
        begin_without_a_look_at_the_log,
        begin_with_nothing,
        store_the_state_after_the_seal,
        split_in_any_order,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_fault_of_splits_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(BaseException) as found:
        _make_some()
    error = found.value.exceptions[0] if isinstance(found.value, BaseExceptionGroup) else found.value
    print(type(error).__name__, str(error)[:200], *found.value.__notes__)


def _make_some() -> None:
    for seed in range(HISTORIES):
        simulate_splits(seed)


# --- Many histories of processes that come, go and split; ``python -m tests.nightly repeat members SEED`` repeats one


MEMBERS_HISTORIES = 150
Patch = pytest.MonkeyPatch
MembersPlant = Callable[[Patch], None]


@pytest.mark.usefixtures("quiet")
def test_a_history_meets_splits_drains_and_members_that_flap() -> None:
    found = Counter[str]()
    for seed in range(4):
        found += simulate_members(seed)
    assert found["splits"]
    assert found["drain"]
    assert found["suspend"]


@pytest.mark.usefixtures("quiet")
@pytest.mark.search
@pytest.mark.timeout(590)
def test_whoever_owns_a_shard_nothing_is_lost_and_edges_are_served_in_many_histories() -> None:
    found = Counter[str]()
    for seed in SLICE.seeds(ci=30, night=250):
        found += simulate_members(seed)
    acks, late = found["acks"], found["late acks"]
    assert acks, "no record was made while owners changed"
    assert 100 * late <= acks, f"{late} of {acks} acknowledgements took {PLANNED_ACK_S} s during planned changes"


# --- that the search finds mistakes: each safety check is taken away once


def own_at_once(patch: Patch) -> None:
    """A process that joins owns shards before others know of it."""
    patch.setattr(cluster, "KNOWN_BEATS", 0.0)


def own_again_after_a_pause(patch: Patch) -> None:
    """A process that others took for gone continues as if nothing had been."""
    entered = Owners.entered

    def unaware(self: Owners, entry: NodeEntry, interval_s: float) -> NodeEntry:
        self._gone_at = float("inf")
        return entered(self, entry, interval_s)

    patch.setattr(Owners, "entered", unaware)


def believe_the_first_write_after_a_pause(patch: Patch) -> None:
    """A write that was under way when its process was stopped gives it shards again."""
    patch.setattr(Owners, "_is_back", lambda *_: True)


def believe_who_is_gone(patch: Patch) -> None:
    """An entry counts although no process writes it any more."""
    look = Owners.look

    async def late(self: Owners, others: dict[str, Seen]) -> None:
        await look(self, {name: seen._replace(age_s=0.0) for name, seen in others.items()})

    patch.setattr(Owners, "look", late)


def keep_what_was_drained(patch: Patch) -> None:
    """A process that is drained owns its shards as before."""
    patch.setattr(Owners, "state", property(lambda _: READY))


def divide_as_each_likes(patch: Patch) -> None:
    """The division depends on who makes it."""
    made = iter(range(1 << 30))
    patch.setattr(cluster, "divide", lambda shards, weights: _turned(divide(shards, weights), next(made)))


def _turned(found: list[str], by: int) -> list[str]:
    by %= len(found)
    return found[by:] + found[:by]


def write_because_it_owns(patch: Patch) -> None:
    """An owner takes each chunk for its own, though another process has written that number."""

    async def trusting(self: Sequencer, drafted: Any) -> bool:
        draft, folded = drafted
        with contextlib.suppress(Exception):
            await self.log.create(draft.chunk.header.n, draft.data)
        return self._accept(folded)

    patch.setattr(Sequencer, "_place", trusting)


def split_without_the_lanes(patch: Patch) -> None:
    """A new shard begins with nothing of the halved one."""

    def nothing(state: ShardState, split: Split, created: int, footer_crc: int) -> ShardState:
        new = ShardState(state.cluster_id, split.shard, state.rules)
        new.n, new.created, new.footer_crc, new.fold_level = split.n, created, footer_crc, state.fold_level
        return new

    patch.setattr(ShardState, "moved_half", nothing)


def write_before_the_new_shard_has_begun(patch: Patch) -> None:
    """No process writes the SEAL of a split."""

    async def nothing(*_: object) -> None:
        pass

    patch.setattr(Splitter, "begin", nothing)


def leave_without_a_word(patch: Patch) -> None:
    """A process that ends keeps its shards until the others miss it."""

    async def nothing(*_: object) -> None:
        pass

    patch.setattr(Membership, "drain", nothing)
    patch.setattr("weft.cloud_hub.cluster.Presence.close", nothing)


PLANTS: tuple[MembersPlant, ...] = (
    own_at_once,
    own_again_after_a_pause,
    believe_the_first_write_after_a_pause,
    believe_who_is_gone,
    keep_what_was_drained,
    divide_as_each_likes,
    write_because_it_owns,
    split_without_the_lanes,
    write_before_the_new_shard_has_begun,
    leave_without_a_word,
)


@pytest.mark.usefixtures("quiet")
@pytest.mark.search(turns=4)
@pytest.mark.timeout(590)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_of_members_is_found(plant: MembersPlant, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(MEMBERS_HISTORIES):
        try:
            simulate_members(seed)
        except BaseException as error:
            found: BaseException = error
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            print(f"seed {seed}: {type(found).__name__}: {str(found)[:200]}")
            return
    raise AssertionError("no history needs this check")


# --- Histories in which a tenant is set apart while its edges come


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 5), *(pytest.param(50 * n, 50, marks=pytest.mark.search) for n in SLICE.seeds(ci=2, night=8))],
)
def test_a_tenant_that_is_set_apart_loses_and_doubles_nothing(first: int, count: int) -> None:
    found = [simulate_apart(seed)["apart"] for seed in range(first, first + count)]
    assert set(found) == {0, 1}, "sometimes its edges were first"


# --- that the histories find mistakes: each safety check is taken away once


def say_nothing_in_the_logs(patch: pytest.MonkeyPatch) -> None:
    async def said(*_: object, apart: bool) -> bool:
        return True

    patch.setattr(Apart, "_set_apart_in", said)


def take_its_lanes_nevertheless(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardSessions, "refuse_moved", lambda *_: None)
    patch.setattr(fold, "_check_here", lambda *_: None)


def set_apart_what_has_data(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(splits, "has_traces", lambda *_: False)


@pytest.mark.usefixtures("quiet")
@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [say_nothing_in_the_logs, take_its_lanes_nevertheless, set_apart_what_has_data],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_fault_of_tenants_set_apart_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(BaseException) as found:
        _play_some()
    assert any("seed" in note for note in found.value.__notes__)


def _play_some() -> None:
    for seed in range(50):
        simulate_apart(seed)


# --- Many histories of a log that is collected; and faults that they have to find


def test_nothing_that_anyone_needs_is_deleted() -> None:
    assert sum(simulate_collection(seed) for seed in range(6)) > 0


@pytest.mark.search
def test_nothing_that_anyone_needs_is_deleted_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=30, night=400):
        simulate_collection(seed)


def broken() -> bool:
    """Whether one of the histories breaks a promise."""
    for seed in range(10):
        try:
            simulate_collection(seed)
        except AssertionError:
            return True
    return False


def test_a_reader_that_takes_a_deleted_chunk_for_the_head_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trusting(self: ShardLog, n: int) -> None:
        return None

    monkeypatch.setattr(ShardLog, "_check_not_passed", trusting)
    assert broken()


def test_a_collector_that_does_not_wait_for_the_tables_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ShardCollector._wanted

    async def hasty(self: ShardCollector, manifest: Manifest, tabled: int) -> int:
        return await wanted(self, manifest, 1 << 40)

    monkeypatch.setattr(ShardCollector, "_wanted", hasty)
    assert broken()


# --- The simulation bites: each fault of the kind that it is there for breaks a promise in one of a few histories


PLANTED_FAULTS_HISTORIES = 60


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

    async def open_link(link: EdgeLink, hello: Hello) -> None:
        await take(link, msgspec.structs.replace(hello, stay=False))

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


@pytest.mark.usefixtures("quiet")
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
def test_a_planted_fault_of_nodes_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_found(plant, simulate, monkeypatch)


@pytest.mark.usefixtures("quiet")
def test_a_planted_fault_of_an_upgrade_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_found(make_snapshots_with_an_earlier_fold, simulate_upgrade, monkeypatch)


def check_that_it_is_found(plant: Plant, history: Callable[[int], object], patch: pytest.MonkeyPatch) -> None:
    plant(patch)
    with pytest.raises(BaseException) as found:
        _planted_faults_make_some(history)
    error = found.value.exceptions[0] if isinstance(found.value, BaseExceptionGroup) else found.value
    print(type(error).__name__, str(error)[:200], *found.value.__notes__)


def _planted_faults_make_some(history: Callable[[int], object]) -> None:
    for seed in range(PLANTED_FAULTS_HISTORIES):
        history(seed)
