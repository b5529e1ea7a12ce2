"""Turns of consumers: a run of messages goes to those that one message after the other would go to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from weft.bounds import Bound, Owner, OwnerKind, Quota, Refusals
from weft.edge_node.queues.definitions import QueueArguments
from weft.edge_node.queues.definitions import QueueDefinition as Definition
from weft.edge_node.queues.queue import Consumption, Credit, Getter, Queue, QueueClient

OWNERS = [Owner(OwnerKind.USER, name) for name in ("ann", "bob")]


class Reader:
    """The identity of a client that may read some topics."""

    unrestricted = False

    def may_read(self, topic: bytes) -> bool:
        return topic != b"secret"


class Wish(NamedTuple):
    """A consumer to make."""

    priority: int
    channel: int
    prefetch: int
    owner: int
    needs_acks: bool
    may_read_all: bool


WISHES = st.builds(
    Wish, st.integers(0, 1), st.integers(0, 2), st.integers(0, 4), st.integers(0, 1), st.booleans(), st.booleans()
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(1, 12), st.sampled_from([b"open", b"secret"])),
        st.tuples(st.just("settle"), st.integers(0, 5), st.integers(1, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
    ),
    max_size=12,
)


class Room:
    """The consumers of one queue, with a credit for each channel and one for each consumer."""

    def __init__(self, wishes: Sequence[Wish], share: int, *, single_active: bool) -> None:
        arguments = QueueArguments(single_active=single_active)
        self.queue = Queue(Definition(1, "q", False, False, False, arguments, OWNERS[0].kind, OWNERS[0].name, since=0))
        self.shares = Bound(Quota("queues.unacknowledged", 2 * share - 1, share, "deliveries"), Refusals(lambda: 0.0))
        channels = [Credit(5, comes_back=True), Credit(2, comes_back=True), Credit(comes_back=True)]
        self.all: list[Consumption] = []
        for wish in wishes:
            reader: Any = None if wish.may_read_all else Reader()
            credit = [channels[wish.channel]]
            if wish.prefetch:
                credit.append(Credit(wish.prefetch, comes_back=True))
            consumption = Consumption(
                self.queue,
                QueueClient(OWNERS[wish.owner], reader),
                Getter(self.queue, lambda _: None),
                credit if wish.needs_acks else [],
                lambda _: None,
                needs_acks=wish.needs_acks,
                exclusive=False,
                priority=wish.priority,
            )
            self.all.append(consumption)
            self.queue.consumptions.add(consumption)
        self.unsettled = dict.fromkeys(self.all, 0)

    def deliver(self, count: int, topic: bytes, *, by_turns: bool) -> list[int]:
        """Give messages to consumers; return the consumer of each."""
        found: list[int] = []
        consumers = self.queue.consumptions
        while len(found) < count:
            first = consumers.choose(topic, self.shares.fits)
            if first is None:
                break
            group: Sequence[Consumption] = (first,)
            run = 1
            if by_turns:
                group, run = consumers.by_turns(first, topic, self.shares, count - len(found))
            for at in range(run):
                each = group[at % len(group)]
                each.take(1)
                if each.needs_acks:
                    self.shares.hold(each.client.owner)
                    self.unsettled[each] += 1
                found.append(self.all.index(each))
            consumers.took(group, run)
        return found

    def settle(self, number: int, count: int) -> None:
        """Free the credit and the share of some messages of a consumer."""
        each = self.all[number % len(self.all)]
        for _ in range(min(count, self.unsettled[each])):
            self.unsettled[each] -= 1
            self.shares.free(each.client.owner)
            for credit in each.credits:
                credit.give(1)

    def cancel(self, number: int) -> None:
        """End a consumer."""
        each = self.all[number % len(self.all)]
        if each.active:
            each.end()
            self.queue.consumptions.remove(each)


@given(st.lists(WISHES, min_size=1, max_size=6), st.integers(1, 8), st.booleans(), STEPS)
def test_a_run_goes_where_its_messages_would_go_one_by_one(
    wishes: list[Wish], share: int, single_active: bool, steps: list[tuple[str, int, Any]]
) -> None:
    rooms = [Room(wishes, share, single_active=single_active) for _ in range(2)]
    for what, first, second in steps:
        if what == "deliver":
            one_by_one, in_runs = [
                room.deliver(first, second, by_turns=by_turns)
                for room, by_turns in zip(rooms, (False, True), strict=True)
            ]
            assert in_runs == one_by_one
            continue
        for room in rooms:
            if what == "settle":
                room.settle(first, second)
            else:
                room.cancel(first)
