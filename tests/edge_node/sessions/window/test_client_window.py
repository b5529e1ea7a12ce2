"""The window of one client, without sockets."""

import pytest

from tests.edge_node.sessions.window.clients import ROOM, Clients, Socket
from weft.edge_node.sessions.packets_out import Wire
from weft.edge_node.sessions.records import Sent
from weft.edge_node.sessions.window import WindowState
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.subscriptions import DeliveryOptions, FanOut
from weft.protocols.mqtt.encoder import PUBREL, encode_publish
from weft.protocols.mqtt.packets import ProtocolViolation, ReasonCode


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
