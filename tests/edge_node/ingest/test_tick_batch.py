from collections.abc import Callable

import pytest

from weft.bounds import Owner, OwnerKind
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import (
    ANSWERS_IN_TURN,
    ANSWERS_MAX,
    ANSWERS_S_MAX,
    COST_MAX,
    REST_BYTES_MAX,
    REST_MESSAGES_MAX,
    REST_S_MAX,
    REST_S_MIN,
    TICK_BYTES_MAX,
    Rests,
    TickBatch,
)
from weft.edge_node.ingest.record import WRITE_COST, Destination, Gathering, Route, Source
from weft.storage.segment_log import LogFull

ROUTE = Route(Destination((1,), False, False), live=False, marked=False)
OTHER = Route(Destination((2,), False, False), live=False, marked=False)


class NotedSource:
    """A source that notes its answers and refusals."""

    def __init__(self, publisher: str, owner: Owner | None = None) -> None:
        self.publisher: str | None = publisher
        self.owner = owner
        self.reported: list[bytes | str] = []

    def acknowledge(self, answers: bytes) -> None:
        self.reported.append(answers)

    def refuse(self, error: BaseException) -> None:
        self.reported.append(str(error))


class Store:
    """Where turns end: keeps what is stored, and makes it durable when a test says so."""

    def __init__(self) -> None:
        self.stored: list[list[bytes]] = []
        """Payloads by append."""
        self.full_for: set[Source] = set()
        self.waiting: list[Callable[[BaseException | None], None]] = []

    def store_each(self, gathered: Gathering) -> dict[Source, Exception]:
        refused: dict[Source, Exception] = {}
        for run in gathered.groups.values():
            refused.update({source: LogFull("full") for source in run.sources if source in self.full_for})
            self.stored.append([p for p, s in zip(run.payloads, run.sources, strict=True) if s not in refused])
        return refused

    def on_durable(self, callback: Callable[[BaseException | None], None]) -> None:
        self.waiting.append(callback)


class Loop:
    """A loop whose turns end when a test says so."""

    def __init__(self) -> None:
        self.time = 10.0
        self.ready: list[Callable[[], None]] = []

    def end_turn(self) -> None:
        ready = self.ready.copy()
        self.ready.clear()
        for callback in ready:
            callback()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def batch(loop: Loop, store: Store) -> TickBatch:
    batch = TickBatch(loop.ready.append, lambda: loop.time, Counters())
    batch.stores_in(store)
    return batch


def publish(batch: TickBatch, client: NotedSource, payload: bytes, answer: bytes = b"", route: Route = ROUTE) -> None:
    batch.add(route, b"t", payload, client)
    if answer:
        batch.answer(client, answer)
    batch.gathered()


def commit(batch: TickBatch, store: Store, error: Exception | None = None) -> None:
    """Call back as the log does after a commit."""
    waiting, store.waiting = store.waiting, []
    for callback in waiting:
        callback(error)
    batch.committed()


def test_reads_of_a_turn_are_one_append_and_each_client_gets_its_own_answers(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    one, two = NotedSource("one"), NotedSource("two")
    publish(batch, one, b"1", b"a1")
    publish(batch, two, b"2", b"a2")
    publish(batch, one, b"3", b"a3")
    assert store.stored == []
    loop.end_turn()
    assert store.stored == [[b"1", b"2", b"3"]]
    assert one.reported == two.reported == [], "nothing is durable yet"
    commit(batch, store)
    assert (one.reported, two.reported) == ([b"a1a3"], [b"a2"])


def test_turns_of_one_commit_are_answered_by_one_write_for_each_client(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    client, other = NotedSource("one"), NotedSource("two")
    for number in (b"1", b"2", b"3"):
        publish(batch, client, number, b"a" + number)
        publish(batch, other, number)
        loop.end_turn()
    assert len(store.stored) == 3
    commit(batch, store)
    assert client.reported == [b"a1a2a3"]
    assert other.reported == [], "nothing was asked of it"


def test_what_many_get_is_stored_before_the_turn_ends(loop: Loop, batch: TickBatch, store: Store) -> None:
    """So the end of a turn delivers no more than a step may, however many clients publish."""
    wide, client = (
        Route(Destination((1,), False, False), live=COST_MAX // 4 - WRITE_COST, marked=False),
        NotedSource("one"),
    )
    for _ in range(4):
        publish(batch, client, b"1", b"a", wide)
    assert (store.stored, batch.is_heavy) == ([], False)
    publish(batch, client, b"1", b"a", wide)
    assert (store.stored, batch.is_heavy) == ([[b"1"] * 5], True)
    publish(batch, client, b"2", b"a", wide)
    loop.end_turn()
    assert store.stored == [[b"1"] * 5, [b"2"]]
    assert not batch.is_heavy
    commit(batch, store)
    assert client.reported == [b"aaaaaa"]


def test_answers_of_a_later_commit_wait_for_it(loop: Loop, batch: TickBatch, store: Store) -> None:
    client = NotedSource("one")
    publish(batch, client, b"1", b"a1")
    loop.end_turn()
    first, store.waiting = store.waiting, []
    publish(batch, client, b"2", b"a2")
    loop.end_turn()
    second, store.waiting = store.waiting, first
    commit(batch, store)
    assert client.reported == [b"a1"]
    store.waiting = second
    commit(batch, store)
    assert client.reported == [b"a1", b"a2"]


def test_a_failed_commit_refuses_whoever_it_would_have_answered_and_nobody_else(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    one, two, early = NotedSource("one"), NotedSource("two"), NotedSource("early")
    publish(batch, early, b"0", b"a0")
    loop.end_turn()
    commit(batch, store)
    publish(batch, one, b"1", b"a1")
    publish(batch, one, b"2", b"a2")
    publish(batch, two, b"3")
    loop.end_turn()
    commit(batch, store, LogFull("disk gone"))
    assert (early.reported, one.reported) == ([b"a0"], ["disk gone"])
    assert two.reported == [], "it was promised nothing"


def test_what_has_no_room_is_refused_and_not_acknowledged(loop: Loop, batch: TickBatch, store: Store) -> None:
    one, two = NotedSource("one"), NotedSource("two")
    store.full_for = {one}
    publish(batch, one, b"1", b"a1")
    publish(batch, two, b"2", b"a2")
    loop.end_turn()
    assert one.reported == ["full"]
    commit(batch, store)
    assert (one.reported, two.reported) == (["full"], [b"a2"])


def test_what_must_be_in_the_log_first_is_stored_before_the_end_of_the_turn(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    client = NotedSource("one")
    publish(batch, client, b"1", b"a1")
    batch.store()
    batch.store()
    publish(batch, client, b"2", b"a2")
    loop.end_turn()
    assert store.stored == [[b"1"], [b"2"]]
    loop.end_turn()
    assert len(store.stored) == 2


def test_each_destination_gets_a_run_of_its_own(loop: Loop, batch: TickBatch, store: Store) -> None:
    client = NotedSource("one")
    for payload, route in ((b"1", ROUTE), (b"2", OTHER), (b"3", ROUTE)):
        publish(batch, client, payload, b"a" + payload, route)
    loop.end_turn()
    assert store.stored == [[b"1", b"3"], [b"2"]]
    commit(batch, store)
    assert client.reported == [b"a1a2a3"]


def test_an_answer_needs_no_record(loop: Loop, batch: TickBatch, store: Store) -> None:
    client = NotedSource("one")
    batch.answer(client, b"a")
    batch.gathered()
    loop.end_turn()
    commit(batch, store)
    assert client.reported == [b"a"]


def test_a_long_turn_is_stored_before_its_end(batch: TickBatch, store: Store) -> None:
    client = NotedSource("one")
    batch.bytes = TICK_BYTES_MAX
    publish(batch, client, b"1")
    assert store.stored == []
    batch.bytes += 1
    publish(batch, client, b"2")
    assert store.stored == [[b"1", b"2"]]


def test_callbacks_of_the_end_of_a_turn_come_after_its_append(loop: Loop, batch: TickBatch, store: Store) -> None:
    client, seen = NotedSource("one"), list[int]()
    batch.at_end(lambda: seen.append(len(store.stored)))
    publish(batch, client, b"1")
    loop.end_turn()
    assert seen == [1]
    loop.end_turn()
    assert seen == [1]
    publish(batch, client, b"2")
    assert len(loop.ready) == 1, "the next turn has an end, too"


def test_a_mistake_in_storing_does_not_end_turns(loop: Loop, batch: TickBatch, store: Store) -> None:
    client = NotedSource("one")

    def fail(_gathered: Gathering) -> dict[Source, Exception]:
        raise RuntimeError("a mistake of ours")

    batch.stores_in(type("Broken", (), {"store_each": staticmethod(fail), "on_durable": store.on_durable})())
    publish(batch, client, b"1")
    with pytest.raises(RuntimeError, match="mistake"):
        loop.end_turn()
    batch.stores_in(store)
    publish(batch, client, b"2")
    loop.end_turn()
    assert store.stored == [[b"2"]]


def test_the_time_is_read_once_a_turn(loop: Loop, batch: TickBatch) -> None:
    client = NotedSource("one")
    publish(batch, client, b"1")
    loop.time = 11.0
    publish(batch, client, b"2")
    assert batch.now == 10.0
    loop.end_turn()
    publish(batch, client, b"3")
    assert batch.now == 11.0


class Faulty(NotedSource):
    """A source whose answers and refusals fail by a mistake of ours."""

    def acknowledge(self, answers: bytes) -> None:
        raise RuntimeError("cannot be answered")

    def refuse(self, error: BaseException) -> None:
        super().refuse(error)
        raise RuntimeError("cannot be refused")


def test_one_client_that_fails_takes_no_answer_from_the_others(loop: Loop, batch: TickBatch, store: Store) -> None:
    faulty, good = Faulty("faulty"), NotedSource("good")
    publish(batch, faulty, b"1", b"a1")
    publish(batch, good, b"2", b"a2")
    loop.end_turn()
    commit(batch, store)
    assert (faulty.reported, good.reported) == (["cannot be answered"], [b"a2"])


def test_one_client_that_fails_keeps_no_refusal_from_the_others(loop: Loop, batch: TickBatch, store: Store) -> None:
    faulty, good = Faulty("faulty"), NotedSource("good")
    publish(batch, faulty, b"1", b"a1")
    publish(batch, good, b"2", b"a2")
    loop.end_turn()
    commit(batch, store, OSError("the disk failed"))
    assert good.reported == ["the disk failed"]


def test_nobody_waits_for_what_a_mistake_left_half_stored(
    loop: Loop, batch: TickBatch, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Gathering) -> dict[Source, Exception]:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(store, "store_each", fail)
    one, two = NotedSource("one"), NotedSource("two")
    publish(batch, one, b"1", b"a1")
    publish(batch, two, b"2")
    with pytest.raises(RuntimeError):
        loop.end_turn()
    assert (one.reported, two.reported) == (["a mistake"], ["a mistake"])


MANY, ONE = Owner(OwnerKind.USER, "many"), Owner(OwnerKind.USER, "one")


def answered(clients: list[NotedSource]) -> int:
    return sum(len(client.reported) for client in clients)


def test_a_fleets_answers_are_sent_in_steps_and_another_owner_waits_for_one(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    fleet = [NotedSource(f"c{number}", MANY) for number in range(3 * ANSWERS_MAX)]
    other = NotedSource("other", ONE)
    for client in (*fleet, other):
        publish(batch, client, b"1", b"a")
    loop.end_turn()
    commit(batch, store)
    assert (answered(fleet), other.reported) == (ANSWERS_MAX, [])
    loop.end_turn()
    assert other.reported == [b"a"]
    assert ANSWERS_MAX < answered(fleet) < 2 * ANSWERS_MAX + ANSWERS_IN_TURN
    while loop.ready:
        loop.end_turn()
    assert all(client.reported == [b"a"] for client in fleet)


def test_a_step_answers_as_many_if_each_client_has_an_owner_of_its_own(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    fleet = [NotedSource(f"c{number}", Owner(OwnerKind.USER, f"u{number}")) for number in range(3 * ANSWERS_MAX)]
    for client in fleet:
        publish(batch, client, b"1", b"a")
    loop.end_turn()
    commit(batch, store)
    loop.end_turn()
    assert answered(fleet) == 2 * ANSWERS_MAX


def test_later_commits_are_answered_behind_earlier_ones(loop: Loop, batch: TickBatch, store: Store) -> None:
    fleet = [NotedSource(f"c{number}", MANY) for number in range(ANSWERS_MAX + 2 * ANSWERS_IN_TURN)]
    for answer in (b"1", b"2", b"3"):
        for client in reversed(fleet):
            publish(batch, client, b"1", answer)
        batch.store()
        commit(batch, store)
    assert fleet[-1].reported == [b"1"], "the fleet has not had its first answers yet"
    while loop.ready:
        loop.end_turn()
    assert all(b"".join(map(bytes, client.reported)) == b"123" for client in fleet)  # type: ignore[arg-type]
    assert fleet[0].reported == [b"123"], "who has to wait is answered once"
    assert fleet[-1].reported == [b"1", b"23"]


def test_answers_that_take_long_end_the_step(loop: Loop, batch: TickBatch, store: Store) -> None:
    class Slow(NotedSource):
        def acknowledge(self, answers: bytes) -> None:
            super().acknowledge(answers)
            loop.time += ANSWERS_S_MAX / 100

    fleet: list[NotedSource] = [Slow(f"c{number}", MANY) for number in range(ANSWERS_MAX)]
    for client in fleet:
        publish(batch, client, b"1", b"a")
    loop.end_turn()
    commit(batch, store)
    assert answered(fleet) == 2 * ANSWERS_IN_TURN
    loop.end_turn()
    assert answered(fleet) == 4 * ANSWERS_IN_TURN


def test_who_ends_behind_its_answers_has_them_sent_at_once(loop: Loop, batch: TickBatch, store: Store) -> None:
    fleet = [NotedSource(f"c{number}", MANY) for number in range(2 * ANSWERS_MAX)]
    for client in fleet:
        publish(batch, client, b"1", b"a")
    loop.end_turn()
    commit(batch, store)
    batch.answer_all()
    assert all(client.reported == [b"a"] for client in fleet)
    for client in fleet:
        publish(batch, client, b"2", b"b")
    batch.store()
    commit(batch, store)
    assert answered(fleet) == len(fleet) + ANSWERS_MAX
    loop.end_turn()
    assert answered(fleet) == 2 * len(fleet), "one step is scheduled, and no second one"
    assert not loop.ready


class HeldLog:
    """A log that holds its next commit back until a time."""

    held_until = 0.0
    pending_bytes = 0

    def listen(self, callback: Callable[[], None]) -> None:
        self.committed = callback


def test_the_loop_rests_until_shortly_before_a_commit_that_is_held_back(
    loop: Loop, batch: TickBatch, store: Store
) -> None:
    log, slept = HeldLog(), list[float]()
    used = 1.0

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        loop.time += seconds

    rests = Rests(log, loop.ready.append, lambda: loop.time, lambda: used, sleep)  # type: ignore[arg-type]
    batch.rest_with(rests)
    device = NotedSource("device")

    def turn(messages: int = 1, route: Route = ROUTE) -> list[float]:
        slept.clear()
        for _ in range(messages):
            publish(batch, device, b"x", b"ack", route)
        loop.end_turn()
        loop.end_turn()
        loop.time += 0.001
        return list(slept)

    assert turn() == []  # a commit may begin at any time
    log.held_until = loop.time + 1
    assert turn() == [REST_S_MAX]
    log.held_until = loop.time + REST_S_MIN + 0.002
    assert turn() == [pytest.approx(0.002)]
    log.held_until = loop.time + 1.5 * REST_S_MIN
    assert turn() == []
    log.held_until = loop.time + 1
    assert turn(REST_MESSAGES_MAX + 1) == []
    assert turn(route=Route(Destination((1,), False, False), live=True, marked=False)) == []  # subscribers wait
    log.pending_bytes = REST_BYTES_MAX
    assert turn() == []  # a commit may begin early
    log.pending_bytes = 0
    used += 0.9
    assert turn() == []  # the loop has other work
    used += 0.0001
    assert turn() == [REST_S_MAX]
    used += 0.0001
    publish(batch, device, b"x", b"ack")
    loop.end_turn()
    log.committed()  # in the iteration of the rest: its answers are sent at the end of that iteration
    loop.end_turn()
    assert slept == [REST_S_MAX]
    loop.end_turn()
    assert slept == [REST_S_MAX] * 2
