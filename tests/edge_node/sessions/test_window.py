"""The window of one client, without sockets."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.edge_node.sessions.room import ROOM, Clients, Room, RoomClient, Socket
from weft.config.limits import EdgeLimits
from weft.edge_node.ingest.routing import Router
from weft.edge_node.sessions.packets_out import PacketWriter, SentAliases, Wire
from weft.edge_node.sessions.records import Sent
from weft.edge_node.sessions.window import (
    CONNECTED,
    QUEUEING,
    SENDING,
    TAKING_NEW,
    TRANSITIONS,
    Delivery,
    Event,
    InFlight,
    Waiting,
    WindowState,
    after,
    can,
)
from weft.edge_node.subscriptions.limits import MESSAGE_OVERHEAD_BYTES, QueueAccount, QueueBudget
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.subscriptions import DeliveryOptions, FanOut
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.encoder import PUBACK, PUBREL, encode_publish
from weft.protocols.mqtt.packets import Properties, ProtocolViolation, Publish, ReasonCode


def run(fan_out: FanOut, *payloads: bytes, stream: int = NOWHERE, seq: int = 0) -> None:
    for at, payload in enumerate(payloads):
        fan_out.deliver(b"t", payload, 0, (), None, stream, seq + at)
    fan_out.flush()


def test_sends_in_order_as_far_as_the_window_reaches() -> None:
    """[MQTT-4.6.0-1] [MQTT-3.3.4-7] [MQTT-4.4.0-1]"""
    clients = Clients()
    window, connection = clients.window()
    run(clients.fan_out_to(window), b"1", b"2", b"3")
    assert connection == [encode_publish(b"t", b"1", 1, 1) + encode_publish(b"t", b"2", 1, 2)], "one write for the read"
    end = window.in_flight.take_pubacks(b"\x40\x02\x00\x01\x40\x02\x00\x63", 0)
    assert end == 4, "an identifier that is not in flight"
    clients.answered(window)
    assert connection[1:] == [encode_publish(b"t", b"3", 1, 3)]
    window.lose()
    again = clients.connect(window)
    assert again == [encode_publish(b"t", b"2", 1, 2, dup=True) + encode_publish(b"t", b"3", 1, 3, dup=True)]


def test_both_bounds_hold_and_acknowledgements_make_room() -> None:
    clients = Clients(3 * ROOM, 1, 2 * ROOM)
    one, two = (clients.window()[0] for _ in range(2))
    run(clients.fan_out_to(one), b"x", b"x", b"x")
    assert clients.counters.deliveries_dropped == 1
    to_two = clients.fan_out_to(two)
    run(to_two, b"x", b"x")
    assert clients.counters.deliveries_dropped == 2
    one.in_flight.puback(1)
    run(to_two, b"x")
    assert clients.counters.deliveries_dropped == 2
    one.end()
    two.end()
    assert clients.budget.used == 0


def test_what_a_stream_keeps_is_not_dropped_but_read_later() -> None:
    clients = Clients(inflight_max=1, bytes_max=2 * ROOM)
    window, _ = clients.window()
    run(clients.fan_out_to(window), b"x", b"x", b"x", stream=7, seq=100)
    assert clients.behind == [("c", 7, 102)]
    assert clients.counters.deliveries_dropped == 0


def test_packet_identifiers_wrap_around_those_in_flight() -> None:
    """[MQTT-2.2.1-4] [MQTT-2.2.1-3]"""
    clients = Clients()
    window, connection = clients.window()
    fan_out = clients.fan_out_to(window)
    run(fan_out, b"first")
    message, options = Message(b"t", b"", 1), DeliveryOptions(window, 1)
    for packet_id in range(2, 65_536):
        assert window.in_flight.add(message, options, 1) == packet_id
        window.in_flight.withdraw(packet_id)
    run(fan_out, b"again")
    assert connection[1] == encode_publish(b"t", b"again", 1, 2)


def test_qos_2_is_released_once_and_then_over() -> None:
    """[MQTT-4.3.3-3] [MQTT-4.3.3-4] [MQTT-4.3.3-6]"""
    clients = Clients()
    window, connection = clients.window()
    clients.fan_out_to(window).message(Message(b"t", b"x", 2))
    assert connection == [encode_publish(b"t", b"x", 2, 1)]
    for answer in (window.in_flight.puback, window.in_flight.pubcomp):
        with pytest.raises(ProtocolViolation, match="delivery 1 at QoS 2, expected PUBREC"):
            answer(1)
    assert window.in_flight.deliveries, "neither PUBACK nor an early PUBCOMP ends it"
    window.in_flight.pubrec(1, 0)
    assert connection[1:] == [PUBREL + b"\0\1"]
    window.lose()
    assert clients.connect(window) == [PUBREL + b"\0\1"], "after PUBREC the message is not sent again"
    window.in_flight.pubcomp(1)
    assert not window.in_flight.deliveries
    assert clients.budget.used == 0


def test_a_refusing_pubrec_ends_it_and_an_unknown_one_is_told() -> None:
    """[MQTT-4.8.2-6] [MQTT-4.3.3-4]"""
    clients = Clients()
    window, connection = clients.window(version=5)
    clients.fan_out_to(window).message(Message(b"t", b"x", 2))
    window.in_flight.pubrec(1, ReasonCode.QUOTA_EXCEEDED)
    assert not window.in_flight.deliveries
    window.in_flight.pubrec(7, 0)
    window.in_flight.pubrec(7, ReasonCode.UNSPECIFIED_ERROR)
    assert connection[1:] == [b"\x62\x03\0\x07\x92"], "PUBREL for the first, nothing for the one that refuses"


def test_a_smaller_receive_maximum_holds_back_what_is_sent_again() -> None:
    """[MQTT-3.3.4-9]"""
    clients = Clients(inflight_max=3)
    window, _ = clients.window()
    run(clients.fan_out_to(window), b"1", b"2", b"3")
    window.lose()
    again = clients.connect(window, 1)
    assert again == [encode_publish(b"t", b"1", 1, 1, dup=True)]
    assert window.state is WindowState.RESENDING
    window.in_flight.puback(1)
    clients.answered(window)
    assert again[1:] == [encode_publish(b"t", b"2", 1, 2, dup=True)]


def test_a_message_that_expired_while_it_waited_is_not_sent() -> None:
    """[MQTT-3.3.2-5]"""
    clients = Clients(inflight_max=1)
    window, connection = clients.window()
    fan_out = clients.fan_out_to(window)
    fan_out.message(Message(b"t", b"1", 1))
    fan_out.message(Message(b"t", b"late", 1, expires_ns=1))
    window.in_flight.puback(1)
    clients.answered(window)
    assert len(connection) == 1
    assert clients.counters.messages_expired == 1


def test_nothing_is_sent_before_connack_and_to_a_socket_that_is_full() -> None:
    """[MQTT-3.2.0-1]"""
    clients = Clients()
    window, first = clients.window()
    fan_out = clients.fan_out_to(window)
    window.lose()
    connection = Socket()
    window.open(connection)
    run(fan_out, b"1")
    assert (first, connection) == ([], [])
    window.greet(Wire(4), 10)
    clients.answered(window)
    assert connection == [encode_publish(b"t", b"1", 1, 1)]
    window.pause(connection)
    fan_out.message(Message(b"t", b"dropped", 0))
    run(fan_out, b"2")
    assert (len(connection), clients.counters.deliveries_dropped) == (1, 1)
    window.resume(first)
    assert window.state is WindowState.LIVE_BLOCKED, "that is another connection's socket"
    window.resume(connection)
    clients.outbox.flush()
    assert connection[1:] == [encode_publish(b"t", b"2", 1, 2)]


def test_qos_2_waits_for_the_journal_and_what_follows_waits_behind_it() -> None:
    clients = Clients(inflight_max=10)
    window, connection = clients.window(persistent=True)
    fan_out = clients.fan_out_to(window)
    fan_out.message(Message(b"t", b"1", 2, stream=7, seq=1))
    fan_out.message(Message(b"t", b"2", 1, stream=7, seq=2))
    assert connection == []
    assert window.held
    assert clients.journal.noted == [
        ("before_sending", "c", {1: Sent(7, 1, 2)}, []),
        ("before_sending", "c", {2: Sent(7, 2, 1)}, []),
    ]
    clients.journal.sync()
    assert connection == [encode_publish(b"t", b"1", 2, 1), encode_publish(b"t", b"2", 1, 2)]
    assert not window.held
    window.in_flight.pubrec(1, 0)
    assert len(connection) == 2
    clients.journal.sync()
    assert connection[2:] == [PUBREL + b"\0\1"]
    fan_out.message(Message(b"t", b"3", 1, stream=7, seq=3))
    assert connection[3:] == [encode_publish(b"t", b"3", 1, 3)]
    assert clients.journal.noted[-1] == ("sending", "c", {3: Sent(7, 3, 1)})
    assert clients.counters.deliveries_sent == 3


def test_what_the_journal_has_too_late_is_not_written_to_another_connection() -> None:
    clients = Clients()
    window, first = clients.window(persistent=True)
    clients.fan_out_to(window).message(Message(b"t", b"1", 2, stream=7, seq=1))
    window.lose()
    second = clients.connect(window)
    clients.journal.sync()
    assert first == []
    assert second == [encode_publish(b"t", b"1", 2, 1, dup=True)]


def test_a_client_whose_session_cannot_be_kept_is_closed() -> None:
    clients = Clients()
    window, connection = clients.window(persistent=True)
    clients.journal.full = True
    clients.fan_out_to(window).message(Message(b"t", b"1", 2, stream=7, seq=1))
    assert connection == []
    assert connection.closed == ReasonCode.QUOTA_EXCEEDED


def test_restored_deliveries_count_once_and_are_sent_again_when_they_were_read() -> None:
    """[MQTT-4.4.0-1]"""
    clients = Clients()
    window, _ = clients.window(persistent=True)
    window.lose()
    window.in_flight.restore({3: Sent(7, 1, 1), 4: Sent(7, 2, 2, released=True)}, window)
    assert clients.budget.used == 2 * (ROOM - 1)
    assert window.in_flight.unread() == {3: (7, 1), 4: (7, 2)}
    connection = clients.connect(window)
    assert connection == []
    window.in_flight.set_read(3, Message(b"t", b"x", 1, stream=7, seq=1), ())
    clients.answered(window)
    assert connection == [encode_publish(b"t", b"x", 1, 3, dup=True) + PUBREL + b"\0\4"]
    assert clients.budget.used == 2 * ROOM - 1
    window.in_flight.puback(3)
    window.in_flight.pubcomp(4)
    assert clients.budget.used == 0
    assert window.in_flight.add(Message(b"t", b"", 1), DeliveryOptions(window, 1), 1) == 5


def test_a_restored_delivery_that_the_log_no_longer_has_is_over() -> None:
    clients = Clients()
    window, _ = clients.window(persistent=True)
    window.lose()
    window.in_flight.restore({3: Sent(7, 1, 1)}, window)
    connection = clients.connect(window)
    window.in_flight.set_read(3, None, ())
    clients.answered(window)
    assert (connection, clients.budget.used, window.state) == ([], 0, WindowState.LIVE)
    assert clients.journal.noted == [("completed", "c", [3])]


def test_a_share_knows_what_a_member_has_and_a_crash_would_take() -> None:
    for persistent in (False, True):
        clients = Clients(inflight_max=10)
        window, _ = clients.window(persistent=persistent)
        shared = DeliveryOptions(window, 2, share="$share/g/t")
        window.send(Message(b"t", b"1", 1, stream=7, seq=1), shared, 1)
        clients.outbox.flush()
        window.send(Message(b"t", b"2", 1, stream=7, seq=2), shared, 1)
        window.send(Message(b"t", b"3", 2, stream=7, seq=3), shared, 2, noted=True)
        window.send(Message(b"t", b"4", 1, stream=7, seq=4), DeliveryOptions(window, 2), 1)
        assert [packet_id for packet_id, _ in window.unanswered("$share/g/t")] == [1, 2]
        unsettled = [(7, 2), (7, 3)] if persistent else [(7, 1), (7, 2)]
        assert list(window.unsettled("$share/g/t")) == unsettled
        clients.outbox.flush()
        assert clients.journal.noted[-1][3] == ["$share/g/t"], "in one commit with the delivery"
        window.give_back(1)
        assert [packet_id for packet_id, _ in window.unanswered("$share/g/t")] == [2]


def test_access_rules_are_asked_for_each_topic() -> None:
    class Nothing:
        unrestricted = False

        def may_read(self, topic: bytes) -> bool:
            return topic != b"secret"

    clients = Clients()
    window, _ = clients.window()
    assert window.may_read(b"secret")
    window.introduce(Nothing(), persistent=False)  # type: ignore[arg-type]
    assert (window.may_read(b"secret"), window.may_read(b"t")) == (False, True)


# --- The table of a window's states, without any window: what a client's life makes of it


class Life(RuleBasedStateMachine):
    """One client's connections as its neighbours see them. The model keeps facts, not states: whether there is a
    connection, what it was sent, what is missing; and says from them what the window may do."""

    def __init__(self) -> None:
        super().__init__()
        self.state = WindowState.AWAY
        self.connected = self.greeted = self.full = False
        self.unanswered = False
        """Whether the connection has still to be sent what the last one left."""
        self.missing = False
        """Whether the log has messages that the client lacks."""
        self.near = False
        """Whether all of them but those not durable yet were read."""

    def happens(self, event: Event) -> None:
        self.state = after(self.state, event)

    @precondition(lambda self: not self.connected)
    @rule()
    def connects(self) -> None:
        self.happens(Event.OPENED)
        self.connected, self.greeted, self.full = True, False, False

    @precondition(lambda self: self.connected and not self.greeted)
    @rule()
    def gets_connack(self) -> None:
        self.happens(Event.GREETED)
        self.greeted = self.unanswered = self.missing = True
        self.near = False

    @precondition(lambda self: self.greeted and self.unanswered and not self.full)
    @rule()
    def has_been_sent_the_rest(self) -> None:
        self.happens(Event.RESENT)
        self.unanswered = False

    @precondition(lambda self: self.greeted and self.missing and not (self.unanswered or self.near))
    @rule()
    def is_nearly_level(self) -> None:
        self.happens(Event.NEAR)
        self.near = True

    @precondition(lambda self: self.greeted and self.missing and not self.unanswered and (self.near or not self.full))
    @rule()
    def is_level(self) -> None:
        self.happens(Event.LEVEL)
        self.missing = self.near = False

    @precondition(lambda self: self.greeted and not self.unanswered and (self.near or not self.missing))
    @rule()
    def has_no_room_in_the_queue(self) -> None:
        self.happens(Event.FELL_BEHIND)
        self.missing, self.near = True, False

    @precondition(lambda self: self.connected and not self.full)
    @rule()
    def does_not_read(self) -> None:
        self.happens(Event.PAUSED)
        self.full = True

    @precondition(lambda self: self.connected and self.full)
    @rule()
    def reads_again(self) -> None:
        self.happens(Event.RESUMED)
        self.full = False

    @precondition(lambda self: self.connected)
    @rule()
    def goes(self) -> None:
        self.happens(Event.LOST)
        self.connected = self.greeted = self.full = self.unanswered = self.near = False

    @invariant()
    def what_may_be_done_follows_from_what_has_happened(self) -> None:
        live = self.greeted and not (self.unanswered or self.missing)
        assert (self.state in CONNECTED) == self.connected
        assert (self.state in SENDING) == (self.greeted and not self.full)
        assert (self.state in TAKING_NEW) == (self.greeted and not self.full and not self.unanswered)
        assert (self.state in QUEUEING) == (live or self.near)
        assert (self.state is WindowState.LIVE) == (live and not self.full)

    @invariant()
    def nothing_else_can_happen(self) -> None:
        may = {
            Event.OPENED: not self.connected,
            Event.GREETED: self.connected and not self.greeted,
            Event.PAUSED: self.connected and not self.full,
            Event.RESUMED: self.connected and self.full,
            Event.LOST: self.connected,
        }
        for event, possible in may.items():
            assert can(self.state, event) == possible
        if not self.greeted or self.unanswered:
            assert not any(can(self.state, event) for event in (Event.NEAR, Event.LEVEL, Event.FELL_BEHIND))


Life.TestCase.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
TestLife = Life.TestCase


def test_every_state_has_a_row_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(WindowState)
    reached, waiting = {WindowState.AWAY}, [WindowState.AWAY]
    while waiting:
        for state in TRANSITIONS[waiting.pop()].values():
            if state not in reached:
                reached.add(state)
                waiting.append(state)
    assert reached == set(WindowState)


@pytest.mark.parametrize("state", set(WindowState) - {WindowState.AWAY})
def test_every_connection_can_be_lost(state: WindowState) -> None:
    assert after(state, Event.LOST) is WindowState.AWAY


@pytest.mark.parametrize("state", [state for state in WindowState if state.name.endswith("_BLOCKED")])
def test_a_socket_that_takes_packets_again_changes_nothing_else(state: WindowState) -> None:
    """And a full one goes where it would have gone, as a twin."""
    open_twin = after(state, Event.RESUMED)
    assert state.name == f"{open_twin.name}_BLOCKED"
    assert after(open_twin, Event.PAUSED) is state
    for event, target in TRANSITIONS[state].items():
        if event not in (Event.RESUMED, Event.LOST):
            assert target.name == f"{after(open_twin, event).name}_BLOCKED"


def test_what_cannot_happen_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="LEVEL while AWAY"):
        after(WindowState.AWAY, Event.LEVEL)


# --- What was sent and is not completed: bytes are right whatever the client answers


OPTIONS = DeliveryOptions(None, 2)  # type: ignore[arg-type]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "puback", "pubrec", "refuse", "pubcomp", "pubacks", "withdraw", "restart"]),
        st.integers(1, 6),
        st.integers(1, 2),
    ),
    max_size=60,
)


def make() -> tuple[InFlight, QueueAccount]:
    clients = Clients()
    account = QueueAccount(clients.budget, 1 << 20)
    return InFlight(account, PacketWriter("c", Wire(4), clients.context)), account


@settings(deadline=None)
@given(STEPS)
def test_the_account_is_what_is_in_flight(steps: list[tuple[str, int, int]]) -> None:
    in_flight, account = make()
    model: dict[int, tuple[int, bool]] = {}
    """Packet identifier -> QoS, whether PUBREC has come."""
    for step, packet_id, qos in steps:
        known = model.get(packet_id)
        try:
            if step == "send":
                model[in_flight.add(Message(b"t", b"x" * qos, qos, stream=1, seq=len(model)), OPTIONS, qos)] = (
                    qos,
                    False,
                )
            elif step == "puback":
                in_flight.puback(packet_id)
                model.pop(packet_id, None)
            elif step == "pubrec":
                in_flight.pubrec(packet_id, 0)
                if known is not None:
                    model[packet_id] = 2, True
            elif step == "refuse":
                in_flight.pubrec(packet_id, 0x97)
                model.pop(packet_id, None)
            elif step == "pubcomp":
                in_flight.pubcomp(packet_id)
                model.pop(packet_id, None)
            elif step == "pubacks":
                row = b"".join(PUBACK + each.to_bytes(2, "big") for each in (packet_id, packet_id + 1))
                end = in_flight.take_pubacks(row, 0)
                for each in range(packet_id, packet_id + end // 4):
                    assert model.pop(each)[0] == 1
            elif step == "withdraw" and known is not None and not known[1]:
                in_flight.withdraw(packet_id)
                del model[packet_id]
            elif step == "restart":
                sent = in_flight.sent()
                in_flight, account = make()
                in_flight.restore(sent, None)  # type: ignore[arg-type]
                assert set(in_flight.unread()) == set(model)
                for each in list(in_flight.unread()):
                    in_flight.set_read(each, Message(b"t", b"x" * model[each][0], 1, stream=1, seq=1), ())
        except ProtocolViolation:
            assert known is not None, "answers to unknown identifiers are passed over"
        assert {each: value[2] for each, value in in_flight.deliveries.items()} == {k: v[0] for k, v in model.items()}
        assert {each for each, value in in_flight.sent().items() if value.released} == {
            k for k, v in model.items() if v[1]
        }
        assert account.used == sum(MESSAGE_OVERHEAD_BYTES + qos for qos, _ in model.values())
    in_flight.clear()
    assert account.used == 0


def test_what_the_log_does_not_have_is_not_for_a_restart() -> None:
    in_flight, _ = make()
    in_flight.add(Message(b"t", b"", 1, stream=NOWHERE), OPTIONS, 1)
    in_flight.add(Message(b"t", b"", 1, stream=3, seq=4), OPTIONS, 1)
    assert in_flight.sent() == {2: Sent(3, 4, 1)}


# --- Packets as each client wants them: shared by clients of a kind where they can be


def writer(clients: Clients, wire: Wire) -> tuple[PacketWriter, Socket]:
    found, connection = PacketWriter("c", wire, clients.context), Socket()
    found.open(connection)
    return found, connection


def options(*identifiers: int, retain: bool = False) -> DeliveryOptions:
    return DeliveryOptions(None, 2, retain_as_published=retain, identifiers=identifiers)  # type: ignore[arg-type]


def received(connection: Socket, version: int = 5) -> list[Publish]:
    data, at, found = b"".join(connection), 0, []
    while at < len(data):
        decoded = decode(data, at, 1 << 20, version)
        assert decoded is not None
        packet, at = decoded
        assert isinstance(packet, Publish)
        found.append(packet)
    return found


def test_clients_of_a_kind_get_the_same_bytes() -> None:
    clients, message = Clients(), Message(b"t", b"x", 0)
    for version in (4, 4, 5):
        one, connection = writer(clients, Wire(version))
        one.add_at_most_once(message, options())
        clients.outbox.flush()
        assert connection == [encode_publish(b"t", b"x", 0, 0, version=version)]
    assert message.packets is not None
    assert len(message.packets) == 2


def test_identifiers_retain_and_aliases_make_a_packet_ones_own() -> None:
    """[MQTT-3.3.4-3] [MQTT-3.3.1-13] [MQTT-3.1.2-27]"""
    clients, message = Clients(), Message(b"t", b"x", 0, retain=True)
    one, connection = writer(clients, Wire(5, topic_alias_maximum=1))
    one.add_at_most_once(message, options(7))
    one.add_at_most_once(message, options(retain=True))
    clients.outbox.flush()
    first, second = received(connection)
    assert (first.topic, first.retain, first.properties.topic_alias) == (b"t", False, 1)
    assert first.properties.subscription_identifiers == (7,)
    assert (second.topic, second.retain, second.properties.topic_alias) == (b"", True, 1)


def test_what_is_too_long_for_a_client_is_not_sent() -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    clients = Clients()
    one, connection = writer(clients, Wire(5, packet_bytes_max=20))
    one.add_at_most_once(Message(b"t", bytes(20)), options())
    assert not one.add_delivery(1, Message(b"t", bytes(20), 1), options(), 1, False, False)
    assert one.add_delivery(1, Message(b"t", b"x", 1), options(), 1, False, False)
    clients.outbox.flush()
    assert [packet.payload for packet in received(connection)] == [b"x"]
    assert clients.counters.deliveries_too_large == 2


def test_an_expiring_message_says_how_long_it_has_left() -> None:
    """[MQTT-3.3.2-6]"""
    clients = Clients()
    one, connection = writer(clients, Wire(5))
    expires_ns = clients.wall_clock() + 5_000_000_000
    one.add_at_most_once(
        Message(b"t", b"x", 0, properties=Properties(content_type="a"), expires_ns=expires_ns), options()
    )
    clients.outbox.flush()
    (packet,) = received(connection)
    assert (packet.properties.message_expiry_interval, packet.properties.content_type) == (5, "a")


def test_the_first_topics_get_an_alias_and_keep_it() -> None:
    """[MQTT-3.1.2-26]"""
    aliases = SentAliases(2)
    for topic, alias in ((b"a", 1), (b"b", 2)):
        assert aliases.find(topic) == (topic, alias)
        assert aliases.find(topic) == (topic, alias), "until a packet with both has gone out"
        aliases.sent(topic, alias)
        assert aliases.find(topic) == (b"", alias)
    assert aliases.find(b"c") == (b"c", None)


# --- What waits for room


def delivery(payload: bytes, stream: int) -> Delivery:
    return Message(b"t", payload, 1, stream=stream), DeliveryOptions(None, 1), 1  # type: ignore[arg-type]


def test_waits_in_order_within_its_bound() -> None:
    budget = QueueBudget(1 << 20)
    waiting = Waiting(QueueAccount(budget, 2 * ROOM))
    assert not waiting
    assert [waiting.push(delivery(payload, 1)) for payload in (b"1", b"2", b"3")] == [True, True, False]
    assert waiting
    assert [waiting.pop()[0].payload for _ in range(2)] == [b"1", b"2"]
    assert not waiting
    assert budget.used == 0


def test_what_the_log_has_is_left_to_it() -> None:
    budget = QueueBudget(1 << 20)
    waiting = Waiting(QueueAccount(budget, 1 << 20))
    for payload, stream in ((b"1", 1), (b"2", NOWHERE), (b"3", 2)):
        waiting.push(delivery(payload, stream))
    assert [message.payload for message, _, _ in waiting.set_aside()] == [b"1", b"2", b"3"]
    assert [message.payload for message in waiting.messages()] == [b"2"]
    assert budget.used == ROOM
    waiting.clear()
    assert (bool(waiting), budget.used) == (False, 0)


# --- Clients that fall behind: between the message at which they do, and the turn in which they begin to read


def payloads(client: RoomClient) -> list[bytes]:
    data, at, found = b"".join(client), 0, list[bytes]()
    while (decoded := decode(data, at, 1 << 24, 5)) is not None:
        packet, at = decoded
        found += [packet.payload] if isinstance(packet, Publish) else []
    return found


def acknowledge(client: RoomClient) -> None:
    assert client.session is not None
    window = client.session.window
    for packet_id in list(window.in_flight.deliveries):
        window.in_flight.puback(packet_id)
    window.pump()
    client.room.outbox.flush()


async def all_read(room: Room, client: RoomClient) -> None:
    """Until a client that acknowledges everything has nothing more to read."""
    assert client.session is not None
    window = client.session.window
    while window.catch_up is not None or window.in_flight.deliveries or window.queued:
        room.node.commit()
        acknowledge(client)
        await asyncio.sleep(0)


def with_alarms(room: Room) -> None:
    patterns = {"telemetry": ["plant/#"], "alarms": ["alarm/+"]}
    added = room.ingest.routing.reroute(Router(patterns, room.node.log.stream))
    room.sessions.add_streams({stream: room.node.log.next_seq(stream) for stream in added})


async def test_a_member_of_a_share_gets_its_own_copies_as_well() -> None:
    room = Room(limits=EdgeLimits(inflight=2, session_queue_bytes=1200))
    client = room.connect("c")
    for text in ("plant/#", "$share/g/plant/#"):
        room.subscribe(client, text)
    sent = [b"%d" % number for number in range(6)]
    room.publish(b"plant/a", *sent)
    acknowledge(client)  # makes room, which the shared subscription takes before the client's reader begins
    await all_read(room, client)
    for _ in range(50):  # the shared one has a reader of its own
        room.node.commit()
        await asyncio.sleep(0)
        acknowledge(client)
    assert Counter(payloads(client)) == dict.fromkeys(sent, 2)


async def test_a_stream_that_is_put_back_is_read_from_its_end_on() -> None:
    room = Room()
    with_alarms(room)
    client = room.connect("c")
    room.subscribe(client, "alarm/+")
    room.publish(b"alarm/a", b"old")
    await all_read(room, client)
    assert payloads(client) == [b"old"]
    for is_last in (False, True):  # without the stream, and with the client between
        room.leave(client)
        room = room.stopped()
        client = client if is_last else room.connect("c")
    with_alarms(room)
    room.publish(b"alarm/a", b"new")
    client = room.connect("c")
    await all_read(room, client)
    assert payloads(client) == [b"new"]


async def test_a_stream_that_comes_before_the_turn_is_read_from_its_end_on() -> None:
    room = Room(limits=EdgeLimits(inflight=1, session_queue_bytes=800))
    room.node.log.append(room.node.log.stream("alarms"), 1, [b"alarm/a"], [b"old"])
    client = room.connect("c")
    for text in ("alarm/+", "plant/#"):
        room.subscribe(client, text)
    sent = [b"%d" % number for number in range(6)]
    room.publish(b"plant/a", *sent)
    with_alarms(room)
    room.publish(b"alarm/a", b"new")
    await all_read(room, client)
    assert payloads(client) == [*sent, b"new"]


async def test_what_is_left_to_the_log_is_in_no_account_soon_after() -> None:
    room = Room(limits=EdgeLimits(inflight=1, session_queue_bytes=100_000))
    member = room.connect("m", expiry=0)
    room.subscribe(member, "$share/g/plant/#")
    room.publish(b"plant/a", *[bytes(1_000)] * 200)
    await asyncio.sleep(0.1)  # no acknowledgement comes, and no room
    assert room.context.windows.budget.used < 2_000
