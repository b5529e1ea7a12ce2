"""Shared subscriptions without sessions: turns, what waits, and what a restart needs."""

from __future__ import annotations

from tests.edge_node.subscriptions.members import FakeMember, subscription
from weft.bounds import FanOutCap
from weft.edge_node.counters import Counters
from weft.edge_node.subscriptions.limits import MESSAGE_OVERHEAD_BYTES, QueueBudget
from weft.edge_node.subscriptions.message import NOWHERE, LogRecord, Message, Outbox
from weft.edge_node.subscriptions.subscriptions import (
    ClientSubscription,
    SharedSubscription,
    SharedSubscriptionContext,
    SharedSubscriptions,
    Subscriptions,
)
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.topics import Share

ROOM = MESSAGE_OVERHEAD_BYTES + 1


class Reading:
    """A catch-up that tests drive themselves."""

    def __init__(self, positions: dict[int, int]) -> None:
        self.positions = positions
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        return lambda *_: self.calls.append(name)


class Shared:
    """One shared subscription."""

    def __init__(self, *members: FakeMember, bytes_max: int = 1 << 20, qos: int = 2) -> None:
        self.counters, self.budget = Counters(), QueueBudget(1 << 20)
        self.readings: list[Reading] = []
        self.ends = {1: 0}
        context = SharedSubscriptionContext(
            self.counters, self.budget, Outbox(FanOutCap()), self.message_of, self.fall_behind, bytes_max, set()
        )
        self.shared = SharedSubscription("g", "t/#", context)
        for member in members:
            self.shared.join(member, subscription(member, "t/#", qos))

    def message_of(self, stream: int, record: LogRecord) -> Message | None:
        return Message(record.topic, record.payload, 1, stream=stream, seq=record.seq)

    def fall_behind(self, shared: SharedSubscription, first: Message | None) -> None:
        messages = [*shared.queued, *([first] if first is not None else [])]
        seqs = [message.seq for message in messages if message.stream == 1]
        self.readings.append(Reading({1: min(seqs, default=self.ends[1])}))
        shared.read_from(self.readings[-1])  # type: ignore[arg-type]
        shared.leave_to_log(self.readings[-1].positions)

    def publish(self, *payloads: bytes, qos: int = 1, stream: int = 1) -> None:
        for payload in payloads:
            message = Message(b"t/1", payload, qos, stream=stream, seq=self.ends[1])
            self.ends[1] += stream == 1
            self.shared.offer(message)

    def read(self, seq: int, payload: bytes) -> None:
        self.shared.read(1, LogRecord(seq, b"t/1", payload, 0, ()))


def test_members_take_turns_and_those_without_room_are_passed_over() -> None:
    a, b, c = FakeMember("a"), FakeMember("b", room=1), FakeMember("c")
    group = Shared(a, b, c)
    group.publish(b"1", b"2", b"3", b"4", b"5")
    assert (a.got, b.got, c.got) == ([b"1", b"4"], [b"2"], [b"3", b"5"])


def test_what_nobody_takes_waits_for_the_first_who_has_room() -> None:
    a, b = FakeMember("a", room=1), FakeMember("b", room=1)
    group = Shared(a, b)
    group.publish(b"1", b"2", b"3", b"4")
    assert group.budget.used == 2 * ROOM
    b.acknowledge()
    assert (a.got, b.got) == ([b"1"], [b"2", b"3"])
    a.acknowledge()
    assert a.got == [b"1", b"4"]
    assert group.budget.used == 0


def test_a_member_that_goes_leaves_what_it_has_at_qos_1_to_others() -> None:
    """[MQTT-4.8.2-4] [MQTT-4.8.2-5]: and at QoS 2 not"""
    goes, stays = FakeMember("goes"), FakeMember("stays", room=1)
    group = Shared(goes)
    group.publish(b"1", b"2")
    group.publish(b"two", qos=2)
    group.shared.join(stays, subscription(stays, "t/#"))
    assert not group.shared.return_unanswered(goes, for_good=True), "it is there, and may acknowledge"
    goes.goes()
    assert group.shared.return_unanswered(goes, for_good=True)
    assert stays.got == [b"2"], "the last one first, so that those without room wait in order"
    assert [message.payload for message in group.shared.queued] == [b"1"]
    assert [message.payload for message, _, _ in goes.pending.values()] == [b"two"]
    assert group.shared.leave(goes)
    stays.acknowledge()
    assert stays.got == [b"2", b"1"]


def test_a_member_that_comes_back_keeps_what_no_other_takes() -> None:
    away, other = FakeMember("away", persistent=True), FakeMember("other", room=0)
    group = Shared(away, other)
    group.publish(b"1", b"2")
    away.goes()
    other.room = 1
    assert not group.shared.return_unanswered(away, for_good=False)
    assert other.got == [b"2"]
    assert [message.payload for message, _, _ in away.pending.values()] == [b"1"]


def test_without_members_nothing_is_left() -> None:
    member = FakeMember("a", room=0)
    group = Shared(member)
    group.publish(b"1", b"2")
    assert group.budget.used
    assert not group.shared.leave(member)
    assert (group.budget.used, member.callbacks) == (0, [])


def test_a_full_queue_of_a_stream_is_read_from_the_log() -> None:
    member = FakeMember("a", room=1)
    group = Shared(member, bytes_max=2 * ROOM)
    group.publish(b"0", b"1", b"2", b"3")
    (reading,) = group.readings
    assert reading.positions == {1: 1}, "with what waited"
    assert (group.shared.queued, group.budget.used) == ([], 0)
    group.publish(b"4")
    assert group.shared.queued == [], "it is read later"
    group.shared.joining()
    group.publish(b"5")
    assert [message.payload for message in group.shared.queued] == [b"5"]
    member.acknowledge()
    assert member.got == [b"0"], "the log comes first"
    assert {"start", "room"} <= set(reading.calls)
    for seq in range(1, 5):
        group.read(seq, b"%d" % seq)
        member.acknowledge()
    group.shared.live()
    assert member.got == [b"%d" % seq for seq in range(6)]


def test_a_queue_that_overflows_while_it_joins_is_read_again() -> None:
    group = Shared(FakeMember("a", room=0), bytes_max=ROOM)
    group.publish(b"0", b"1")
    (reading,) = group.readings
    group.shared.joining()
    group.publish(b"2", b"3")
    assert "fall_back" in reading.calls
    assert (group.shared.queued, group.budget.used) == ([], 0)


def test_what_no_stream_keeps_is_dropped_without_room() -> None:
    group = Shared(FakeMember("a", room=0), bytes_max=ROOM)
    group.publish(b"1", b"2", stream=NOWHERE)
    group.publish(b"0", qos=0)
    assert group.counters.deliveries_dropped == 1
    assert group.readings == []


def test_what_no_member_may_read_waits_for_nobody() -> None:
    member = FakeMember("a", room=0)
    group = Shared(member)
    group.publish(b"1")
    member.unreadable.add(b"t/1")
    group.publish(b"2")
    assert group.counters.deliveries_dropped == 1
    member.room = 9
    member.acknowledge()
    assert (member.got, group.counters.deliveries_dropped, group.budget.used) == ([], 2, 0)


def test_the_journal_learns_of_qos_2_first_when_a_crash_may_not_give_it_twice() -> None:
    passing, stays = FakeMember("passing"), FakeMember("stays", persistent=True)
    group = Shared(passing)
    group.publish(b"1", qos=2)
    assert passing.noted == []
    group.shared.join(stays, subscription(stays, "t/#", 2))
    group.publish(b"2", b"3", qos=2)
    group.publish(b"4", b"5")
    assert passing.noted + stays.noted == [b"2", b"3"]


def test_with_nobody_there_a_lasting_one_reads_the_log() -> None:
    stays = FakeMember("stays", persistent=True)
    group = Shared(stays)
    stays.goes()
    group.shared.member_left()
    (reading,) = group.readings
    assert reading.calls == []
    group.shared.member_left()
    assert reading.calls == ["stop"]
    passing = FakeMember("passing")
    other = Shared(passing)
    passing.goes()
    other.shared.member_left()
    assert other.readings == []


def test_a_restart_goes_on_after_what_was_given_and_reads_what_is_owed_again() -> None:
    a, b = FakeMember("a", room=2, persistent=True), FakeMember("b", room=2)
    group = Shared(a, b)
    group.publish(*(b"%d" % number for number in range(6)))
    positions, owed = group.shared.state(group.ends)
    assert positions == {1: 4}, "4 and 5 wait"
    assert owed == [(1, 0), (1, 1), (1, 2), (1, 3)], "the members' own journals are no concern here"
    again = FakeMember("a", persistent=True)
    restarted = Shared(again)
    reading = Reading({1: 1})
    restarted.shared.restore({1: 4}, [(1, 1), (1, 3)], reading)  # type: ignore[arg-type]
    for seq in range(6):
        restarted.read(seq, b"%d" % seq)
    assert again.got == [b"1", b"3", b"4", b"5"]
    assert restarted.shared.state({1: 6})[0] == {1: 6}


def test_a_share_is_made_by_its_first_member_and_ends_with_its_last() -> None:
    subscriptions, counters = Subscriptions(), Counters()
    context = SharedSubscriptionContext(
        counters, QueueBudget(1 << 20), Outbox(FanOutCap()), lambda *_: None, lambda *_: None, 1 << 20, set()
    )
    every = SharedSubscriptions(subscriptions, context)
    a, b = FakeMember("a"), FakeMember("b")
    of = {member: ClientSubscription(member, "t", Subscription("$share/g/t", 1), None) for member in (a, b)}
    one = every.join(a, of[a], Share("g", "t"))
    assert every.join(b, of[b], Share("g", "t")) is one
    assert every.join(a, of[a], Share("g", "t")) is one
    assert (every.all(), every.get("$share/g/t"), every.get("t")) == ([one], one, None)
    assert subscriptions.recipients(b"t").shared == (one,)
    assert every.leave(a, one)
    assert not every.leave(b, one)
    assert every.all() == []
    assert not subscriptions.recipients(b"t").live


def test_records_that_the_log_no_longer_had_are_counted() -> None:
    group = Shared(FakeMember("a"))
    group.shared.lost(3)
    assert group.counters.deliveries_lost == 3
