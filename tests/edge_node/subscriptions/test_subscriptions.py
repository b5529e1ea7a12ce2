"""Who gets what."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edge_node.subscriptions.members import FakeMember, subscription
from weft.bounds import FanOutCap, Owner, OwnerKind, Quota, Refusals
from weft.edge_node.counters import Counters
from weft.edge_node.sessions.filters import LEVEL_BYTES, cost
from weft.edge_node.subscriptions import subscriptions as own_filters
from weft.edge_node.subscriptions.limits import MESSAGE_OVERHEAD_BYTES, MatchCost, QueueAccount, QueueBudget
from weft.edge_node.subscriptions.message import NOWHERE, LogRecord, Message, Outbox
from weft.edge_node.subscriptions.subscriptions import (
    ClientSubscription,
    FanOut,
    FilterStarts,
    OwnFilters,
    SharedSubscription,
    SharedSubscriptionContext,
    SharedSubscriptions,
    Subscriptions,
)
from weft.protocols import topics
from weft.protocols.batch import Flag
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.topics import FilterTree, Share, matches


def test_matching_subscriptions_of_one_client_are_one_delivery() -> None:
    """[MQTT-3.3.4-2]: at the highest QoS, with all identifiers"""
    subscriptions, client = Subscriptions(), FakeMember("c")
    subscriptions.add(ClientSubscription(client, "a/#", Subscription("a/#", 1, no_local=True), 7))
    subscriptions.add(ClientSubscription(client, "a/+", Subscription("a/+", 2, retain_as_published=True), 8))
    (options,) = subscriptions.recipients(b"a/b").clients
    assert (options.subscriber, options.qos, sorted(options.identifiers)) == (client, 2, [7, 8])
    assert (options.no_local, options.retain_as_published) == (False, True)
    assert not subscriptions.recipients(b"b").live


def test_only_sessions_that_stay_want_what_no_stream_keeps() -> None:
    subscriptions = Subscriptions()
    subscriptions.add(subscription(FakeMember("passing"), "t", 2))
    subscriptions.add(subscription(FakeMember("stays", persistent=True), "t", 0))
    assert not subscriptions.recipients(b"t").wanted
    subscriptions.add(subscription(FakeMember("wants", persistent=True), "t", 1))
    assert subscriptions.recipients(b"t").wanted
    assert not subscriptions.recipients(b"t").marked
    subscriptions.add(subscription(FakeMember("own"), "t", 1, no_local=True))
    assert subscriptions.recipients(b"t").marked


def test_who_may_not_read_a_topic_is_no_recipient_of_it() -> None:
    subscriptions, client = Subscriptions(), FakeMember("c")
    subscriptions.add(subscription(client, "#"))
    client.unreadable.add(b"secret")
    assert not subscriptions.recipients(b"secret").live
    assert subscriptions.recipients(b"t").live
    client.unreadable.clear()
    assert not subscriptions.recipients(b"secret").live, "remembered until something changes"
    subscriptions.changed()
    assert subscriptions.recipients(b"secret").live


def test_watchers_hear_of_a_change_once_until_somebody_asks_again() -> None:
    subscriptions, heard = Subscriptions(), list[int]()
    subscriptions.watch(lambda: heard.append(1))
    subscriptions.add(subscription(FakeMember("a"), "t"))
    assert heard == [], "nobody has asked yet"
    subscriptions.recipients(b"t")
    subscriptions.changed()
    subscriptions.changed()
    assert len(heard) == 1


def test_a_run_reaches_its_subscribers_at_the_lower_qos_and_not_its_own_publisher() -> None:
    """[MQTT-3.8.4-8] [MQTT-3.8.3-3]"""
    subscriptions, outbox, flushed = Subscriptions(), Outbox(FanOutCap()), list[str]()
    one, own = FakeMember("one"), FakeMember("own")
    subscriptions.add(subscription(one, "t", 1))
    subscriptions.add(subscription(own, "t", 2, no_local=True))
    outbox.add(lambda: flushed.append("one"))
    fan_out = FanOut(subscriptions, outbox)
    for payload, flag in ((b"2", Flag.PUBLISHED_QOS2), (b"0", Flag.PUBLISHED_QOS0)):
        fan_out.deliver(b"t", payload, int(flag), (), "own", NOWHERE, 0)
    fan_out.flush()
    assert (one.got, own.got, flushed) == ([b"2", b"0"], [], ["one"])
    assert [qos for _, _, qos in one.pending.values()] == [1]
    fan_out.deliver(b"t", b"x", 0, (), None, 5, 9)
    assert own.got == [b"x"]
    ((message, _, qos),) = own.pending.values()
    assert (message.stream, message.seq, qos) == (5, 9, 1)


# --- Shared subscriptions without sessions: turns, what waits, and what a restart needs


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


# --- A client's own subscriptions, as its reader of the log asks for them


FILTERS = ["#", "+", "a", "a/#", "a/+", "+/b", "a/b", "$SYS/#", "+/+/c"]
TOPICS = [b"a", b"a/b", b"a/b/c", b"b", b"$SYS/a"]


def subscribed(client: FakeMember, *filters: str) -> dict[str, tuple[ClientSubscription, None]]:
    return {text: (ClientSubscription(client, text, Subscription(text, 1), None), None) for text in filters}


@given(st.sets(st.sampled_from(FILTERS)), st.booleans())
def test_those_match_that_the_topic_matches(filters: set[str], is_tree: bool) -> None:
    client = FakeMember("c")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_filters, "FILTERS_MAX", 0 if is_tree else 100)
        own = OwnFilters(client, subscribed(client, *filters), Subscriptions())
        for topic in (*TOPICS, *TOPICS):
            matching = {each.filter for each in own.matching(topic)}
            assert matching == {text for text in filters if matches(text, topic.decode())}


def test_what_is_remembered_is_bounded() -> None:
    client = FakeMember("c")
    own = OwnFilters(client, subscribed(client, "#"), Subscriptions())
    for number in range(1_000):
        assert own.matching(b"%d" % number)
        assert own.options(b"%d" % number + b"x" * 1_000)
    assert len(own._known) <= own_filters.OWN_TOPICS_MAX
    assert max(map(len, own._known)) <= own_filters.TOPIC_BYTES_MAX


def test_they_are_looked_at_again_when_something_has_changed() -> None:
    client, subscriptions = FakeMember("c"), Subscriptions()
    filters = subscribed(client, "a")
    own = OwnFilters(client, filters, subscriptions)
    assert own.matching(b"a")
    del filters["a"]
    subscriptions.changed()
    assert not own.matching(b"a")


# --- Where subscriptions began, as long as it matters


def test_a_start_matters_until_the_client_has_read_up_to_it() -> None:
    starts, client = FilterStarts(), FakeMember("c")
    a, b = subscription(client, "a"), subscription(client, "b")
    starts.set("c", a, {1: 10, 2: 5})
    starts.set("c", b, {1: 20})
    assert starts.of("c", "a") == {1: 10, 2: 5}
    starts.passed("c", {1: 10})
    assert dict(starts.all_of("c")) == {a: {2: 5}, b: {1: 20}}
    starts.passed("c", {1: 19, 2: 5})
    assert dict(starts.all_of("c")) == {b: {1: 20}}
    starts.passed("c", {1: 20, 2: 5})
    assert not starts.knows("c")
    assert starts.of("c", "b") == {}


def test_what_was_taken_out_is_forgotten() -> None:
    starts, client = FilterStarts(), FakeMember("c")
    starts.set("c", subscription(client, "a"), {1: 1})
    starts.set("c", subscription(client, "b"), {1: 1})
    starts.drop("c", "a")
    starts.drop("c", "a")
    starts.set("c", subscription(client, "b"), {})
    assert not starts.knows("c")
    starts.set("c", subscription(client, "a"), {1: 1})
    starts.forget("c")
    assert not starts.knows("c")
    starts.passed("c", {1: 9})


# --- A message visits a bounded number of nodes of the filter tree, whatever filters there are and whose they are


COMMON_NODES = 833
ALICE, MALLORY = Owner(OwnerKind.USER, "alice"), Owner(OwnerKind.USER, "mallory")
LEVELS = st.lists(st.sampled_from(["a", "+"]), min_size=1, max_size=24).map("/".join)
MATCH_COST_FILTERS = LEVELS | LEVELS.map("{}/#".format)
SUBSCRIPTIONS = st.lists(
    st.tuples(st.sampled_from([ALICE, MALLORY]), MATCH_COST_FILTERS, st.sampled_from(["", "g", "h"]))
)


def account(total: int = 4096, share: int = 1024) -> MatchCost:
    return MatchCost(Quota("limits.match_cost", total, share, "filters"), Refusals(lambda: 0.0))


class Visited:
    """A tree of filters that counts the nodes which are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counted = self

        class CountedNode(topics._Node[str]):
            def __getattribute__(self, name: str) -> object:
                counted.visits += name == "children"
                return super().__getattribute__(name)

        self.visits = 0
        monkeypatch.setattr(topics, "_Node", CountedNode)
        self.tree: FilterTree[str] = FilterTree()

    def count(self, topic: str) -> int:
        self.visits = 0
        self.tree.match(topic)
        return self.visits


def deep_filters(count: int) -> list[str]:
    """Filters whose first 16 levels are ``a`` or ``+``, in ever other ways, with a hundred levels behind them."""
    chance, found = random.Random(1), set[str]()
    while len(found) < count:
        found.add("/".join([*(chance.choice("a+") for _ in range(16)), *["a"] * 110, "z"]))
    return sorted(found)


def test_a_message_visits_no_more_nodes_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,680 such filters had a message visit half a million nodes, which took 0.4 s"""
    cost, visited = account(), Visited(monkeypatch)
    taken = 0
    for text in deep_filters(4680):
        if cost.fits(MALLORY, text):
            cost.hold(MALLORY, text)
            visited.tree.add(text, text)
            taken += 1
    assert 0 < taken < 100
    assert cost.of(MALLORY) <= 1024
    assert visited.count("/".join(["a"] * 126)) <= COMMON_NODES + 1024


def test_common_filters_are_free_and_there_for_everyone() -> None:
    cost = account(total=1024, share=1024)
    for text in deep_filters(1000):
        if cost.fits(MALLORY, text):
            cost.hold(MALLORY, text)
    assert not cost.fits(ALICE, "/".join(["+"] * 16 + ["b"] * 90))
    for text in ("#", "+/press-7/commands", "plant/+/+/telemetry", "/".join("abcdefghijklmnop"), "a/+/b/+/#"):
        assert cost.fits(ALICE, text)
        cost.hold(ALICE, text)
    assert cost.of(ALICE) == 0


def test_a_thousand_devices_with_filters_alike_cost_as_one() -> None:
    cost = account()
    for number in range(1000):
        text = f"+/+/+/device-{number}/commands"
        assert cost.fits(ALICE, text)
        cost.hold(ALICE, text)
    assert cost.used == cost.of(ALICE) == 3


def test_each_share_is_one_message_more() -> None:
    """A client in ten thousand shares of one filter would get ten thousand copies of each message"""
    cost = account(share=3)
    for name in ("a", "b", "c"):
        assert cost.fits(ALICE, "t", name)
        cost.hold(ALICE, "t", name)
        cost.hold(ALICE, "other", name)
    assert cost.fits(ALICE, "further", "c")
    assert not cost.fits(ALICE, "t", "d")
    assert cost.fits(MALLORY, "t", "d")
    cost.free(ALICE, "t", "b")
    assert not cost.fits(ALICE, "t", "d")
    cost.free(ALICE, "other", "b")
    assert cost.fits(ALICE, "t", "d")


def test_refusals_name_the_bound_and_the_owner() -> None:
    refusals = Refusals(lambda: 0.0)
    cost = MatchCost(Quota("limits.match_cost", 4, 3, "filters"), refusals)
    cost.hold(ALICE, "+/+/+/x/y")
    assert not cost.fits(ALICE, "x/+/+/+")
    assert not cost.fits(MALLORY, "x/y/+/+/+/z")
    assert [(each.bound, each.owner) for each in refusals] == [
        ("limits.user_share of limits.match_cost", ALICE),
        ("limits.match_cost", MALLORY),
    ]


@given(SUBSCRIPTIONS)
def test_what_is_given_back_is_what_was_taken(subscriptions: list[tuple[Owner, str, str]]) -> None:
    cost = account()
    for each in subscriptions:
        cost.hold(*each)
    assert cost.used <= cost.of(ALICE) + cost.of(MALLORY)
    for each in reversed(subscriptions):
        cost.free(*each)
    assert (cost.used, cost.of(ALICE), cost.of(MALLORY)) == (0, 0, 0)


@given(SUBSCRIPTIONS)
def test_no_topic_visits_more_nodes_than_the_account_says(subscriptions: list[tuple[Owner, str, str]]) -> None:
    cost = account()
    with pytest.MonkeyPatch.context() as patch:
        visited = Visited(patch)
        for owner, text, _ in subscriptions:
            cost.hold(owner, text)
            visited.tree.add(text, text)
        assert visited.count("/".join(["a"] * 30)) <= COMMON_NODES + cost.used


# --- Bounds on what waits: one client's, and all clients' together


def test_either_bound_refuses() -> None:
    budget = QueueBudget(100)
    one, two = QueueAccount(budget, 80), QueueAccount(budget, 80)
    assert one.fits(80)
    assert not one.fits(81)
    one.take(80)
    assert one.is_full()
    assert not two.is_full()
    assert two.fits(20)
    assert not two.fits(21)
    two.take(20)
    assert two.is_full(), "all have taken what there is"
    one.free(80)
    assert two.fits(60)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), max_size=50))
def test_the_budget_is_the_sum_of_the_accounts(steps: list[tuple[int, int]]) -> None:
    budget = QueueBudget(1000)
    accounts = [QueueAccount(budget, 400) for _ in range(3)]
    for which, size in steps:
        account = accounts[which]
        if account.fits(size):
            account.take(size)
        else:
            account.free(account.used)
        assert budget.used == sum(each.used for each in accounts) <= budget.bytes_max
        assert account.used <= 400


# --- What filters cost


def test_a_filter_costs_its_text_and_its_levels() -> None:
    assert cost("a") == 1 + LEVEL_BYTES
    assert cost("a/é/#") == 6 + 3 * LEVEL_BYTES
