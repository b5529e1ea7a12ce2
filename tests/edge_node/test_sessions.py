from edge_node.counters import Counters
from edge_node.sessions import SessionLimits, Sessions
from edge_node.subscriptions import Subscriptions
from protocols.mqtt.encoder import encode_publish


class Wire:
    """A link that keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.writable = True

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def displace(self) -> None:
        raise AssertionError("nobody connects anew here")


def make(**limits: int) -> tuple[Sessions, Subscriptions, Counters]:
    subscriptions, counters = Subscriptions(), Counters()
    return Sessions(subscriptions, SessionLimits(**limits), counters), subscriptions, counters


def test_the_session_longest_away_is_forgotten_first() -> None:
    sessions, subscriptions, counters = make(sessions_max=2)
    for client_id in ("a", "b"):
        session, _ = sessions.open(client_id, False, Wire())
        sessions.subscribe(session, "t", 0)
        sessions.close(session)
    sessions.close(sessions.open("a", False, Wire())[0])
    sessions.open("c", False, Wire())
    assert counters.sessions_evicted == 1
    assert len(subscriptions.subscribers(b"t")) == 1
    assert sessions.open("a", False, Wire())[1]
    assert not sessions.open("b", False, Wire())[1]


def test_a_clean_session_leaves_nothing_behind() -> None:
    sessions, subscriptions, counters = make()
    session, _ = sessions.open("a", True, Wire())
    sessions.subscribe(session, "t/#", 1)
    sessions.close(session)
    assert subscriptions.subscribers(b"t/1") == ()
    assert counters.sessions == 0


def test_subscriptions_over_the_limit_fail_and_known_ones_change() -> None:
    sessions, _, _ = make(filters_max=2)
    session, _ = sessions.open("a", True, Wire())
    assert [sessions.subscribe(session, topic_filter, 1) for topic_filter in ("a", "b", "c")] == [1, 1, 0x80]
    assert sessions.subscribe(session, "a", 0) == 0
    sessions.unsubscribe(session, "b")
    assert sessions.subscribe(session, "c", 2) == 1


def test_what_waited_for_a_slow_client_is_sent_when_it_catches_up() -> None:
    sessions, subscriptions, counters = make()
    wire = Wire()
    session, _ = sessions.open("a", True, wire)
    sessions.subscribe(session, "t", 1)
    wire.writable = False
    subscriptions.publish(b"t", b"1", 1)
    subscriptions.publish(b"t", b"dropped", 0)
    assert wire.sent == []
    assert counters.deliveries_dropped == 1
    wire.writable = True
    session.pump()
    assert wire.sent == [encode_publish(b"t", b"1", 1, 1)]


def test_one_message_per_subscriber_at_the_highest_granted_qos() -> None:
    sessions, subscriptions, _ = make()
    wire = Wire()
    session, _ = sessions.open("a", True, wire)
    for topic_filter, qos in (("t/+", 0), ("t/#", 1), ("#", 0)):
        sessions.subscribe(session, topic_filter, qos)
    subscriptions.publish(b"t/1", b"x", 2)
    subscriptions.publish(b"t/1", b"y", 0)
    assert wire.sent == [encode_publish(b"t/1", b"x", 1, 1), encode_publish(b"t/1", b"y")]
