"""Who gets what."""

from tests.edge_node.subscriptions.members import FakeMember, subscription
from weft.bounds import FanOutCap
from weft.edge_node.subscriptions.message import NOWHERE, Outbox
from weft.edge_node.subscriptions.subscriptions import ClientSubscription, FanOut, Subscriptions
from weft.protocols.batch import Flag
from weft.protocols.mqtt.packets import Subscription


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
