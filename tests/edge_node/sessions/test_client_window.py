"""The in-flight window of one client, without sockets."""

import pytest

from weft.edge_node.counters import Counters
from weft.edge_node.sessions.client_window import Outbound
from weft.edge_node.sessions.packets_out import Wire
from weft.edge_node.sessions.window_ports import MESSAGE_OVERHEAD_BYTES, QueueBudget
from weft.edge_node.subscriptions.fan_out import FanOut
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.subscriptions import Entry, Subscriptions
from weft.protocols.mqtt.encoder import PUBREL, encode_publish
from weft.protocols.mqtt.errors import ProtocolViolation
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.mqtt.reason_codes import ReasonCode

ROOM = MESSAGE_OVERHEAD_BYTES + 1


class Keeper:
    def __init__(self, bytes_max: int = 1 << 20) -> None:
        self.counters = Counters()
        self.budget = QueueBudget(bytes_max)
        self.touched: list[Outbound] = []
        self.behind: list[tuple[str, int, int]] = []

    def wall_clock(self) -> int:
        return 1_000_000_000

    def flush(self) -> None:
        while self.touched:
            self.touched.pop().flush()

    def fall_behind(self, outbound: Outbound, first: Message | None) -> None:
        assert first is not None
        self.behind.append((outbound.client_id, first.stream, first.seq))

    def dropped(self, _outbound: Outbound) -> None:
        self.counters.deliveries_dropped += 1

    def journal_sent(self, *_: object) -> None:
        raise AssertionError("nobody is persistent here")

    journal_sending = journal_pubrec = journal_completed = journal_sent


class Socket(list[bytes]):
    def send(self, data: bytes) -> None:
        self.append(data)

    def displace(self, code: ReasonCode) -> None:
        raise AssertionError("nobody connects anew here")


def deliver(fan_out: FanOut, topics: list[bytes], payloads: list[bytes], stream: int, seq: int) -> None:
    for at, (topic, payload) in enumerate(zip(topics, payloads, strict=True)):
        fan_out.deliver(topic, payload, 0, (), None, stream, seq + at)
    fan_out.flush()


def make(
    keeper: Keeper, window: int = 2, bytes_max: int = 1 << 20, version: int = 4
) -> tuple[Outbound, Socket, FanOut]:
    outbound, link = Outbound("c", Wire(version), keeper, window, bytes_max), Socket()  # type: ignore[arg-type]
    outbound.attach(link, Wire(version), window)
    subscriptions = Subscriptions()
    subscriptions.add(Entry(outbound, "t", Subscription("t", 2), None))
    return outbound, link, FanOut(subscriptions, keeper.touched, keeper.flush, keeper.counters)


def test_sends_in_order_as_far_as_the_window_reaches() -> None:
    """[MQTT-4.6.0-1] [MQTT-3.3.4-7] [MQTT-4.4.0-1]"""
    keeper = Keeper()
    outbound, link, fan_out = make(keeper)
    deliver(fan_out, [b"t"] * 3, [b"1", b"2", b"3"], 0, 0)
    assert link == [encode_publish(b"t", b"1", 1, 1) + encode_publish(b"t", b"2", 1, 2)], "one write for the read"
    assert outbound.take_pubacks(b"\x40\x02\x00\x01\x40\x02\x00\x63", 0) == 4, "an identifier that is not in flight"
    outbound.pump()
    keeper.flush()
    assert link[1:] == [encode_publish(b"t", b"3", 1, 3)]
    again = Socket()
    outbound.attach(again, Wire(4), 2)
    outbound.pump()
    keeper.flush()
    assert again == [encode_publish(b"t", b"2", 1, 2, dup=True) + encode_publish(b"t", b"3", 1, 3, dup=True)]


def test_both_bounds_hold_and_acknowledgements_make_room() -> None:
    keeper = Keeper(3 * ROOM)
    one, _, to_one = make(keeper, 1, 2 * ROOM)
    two, _, to_two = make(keeper, 1, 2 * ROOM)
    deliver(to_one, [b"t"] * 3, [b"x"] * 3, NOWHERE, 0)
    assert keeper.counters.deliveries_dropped == 1
    deliver(to_two, [b"t"] * 2, [b"x"] * 2, NOWHERE, 0)
    assert keeper.counters.deliveries_dropped == 2
    one.puback(1)
    deliver(to_two, [b"t"], [b"x"], NOWHERE, 0)
    assert keeper.counters.deliveries_dropped == 2
    one.clear()
    two.clear()
    assert keeper.budget.used == 0


def test_what_a_stream_keeps_is_not_dropped_but_read_later() -> None:
    keeper = Keeper()
    _, _, fan_out = make(keeper, 1, 2 * ROOM)
    deliver(fan_out, [b"t"] * 3, [b"x"] * 3, 7, 100)
    assert keeper.behind == [("c", 7, 102)]
    assert keeper.counters.deliveries_dropped == 0


def test_packet_identifiers_wrap_around_those_in_flight() -> None:
    """[MQTT-2.2.1-4] [MQTT-2.2.1-3]"""
    keeper = Keeper()
    outbound, link, fan_out = make(keeper)
    deliver(fan_out, [b"t"], [b"first"], 0, 0)
    outbound.last_id = 65_535
    deliver(fan_out, [b"t"], [b"again"], 0, 0)
    assert link[1] == encode_publish(b"t", b"again", 1, 2)


def test_qos_2_is_released_once_and_then_over() -> None:
    """[MQTT-4.3.3-3] [MQTT-4.3.3-4] [MQTT-4.3.3-6]"""
    keeper = Keeper()
    outbound, link, fan_out = make(keeper)
    fan_out.message(Message(b"t", b"x", 2))
    assert link == [encode_publish(b"t", b"x", 2, 1)]
    for answer in (outbound.puback, outbound.pubcomp):
        with pytest.raises(ProtocolViolation, match="delivery 1 at QoS 2, expected PUBREC"):
            answer(1)
    assert outbound.inflight, "neither PUBACK nor an early PUBCOMP ends it"
    outbound.pubrec(1, 0)
    assert link[1:] == [PUBREL + b"\0\1"]
    again = Socket()
    outbound.attach(again, Wire(4), 2)
    outbound.pump()
    keeper.flush()
    assert again == [PUBREL + b"\0\1"], "after PUBREC the message is not sent again"
    outbound.pubcomp(1)
    assert not outbound.inflight
    assert keeper.budget.used == 0


def test_a_refusing_pubrec_ends_it_and_an_unknown_one_is_told() -> None:
    """[MQTT-4.8.2-6] [MQTT-4.3.3-4]"""
    keeper = Keeper()
    outbound, link, fan_out = make(keeper, version=5)
    fan_out.message(Message(b"t", b"x", 2))
    outbound.pubrec(1, ReasonCode.QUOTA_EXCEEDED)
    assert not outbound.inflight
    outbound.pubrec(7, 0)
    outbound.pubrec(7, ReasonCode.UNSPECIFIED_ERROR)
    assert link[1:] == [b"\x62\x03\0\x07\x92"], "PUBREL for the first, nothing for the one that refuses"


def test_a_smaller_receive_maximum_holds_back_what_is_sent_again() -> None:
    """[MQTT-3.3.4-9]"""
    keeper = Keeper()
    outbound, _, fan_out = make(keeper, 3)
    deliver(fan_out, [b"t"] * 3, [b"1", b"2", b"3"], 0, 0)
    again = Socket()
    outbound.attach(again, Wire(4), 1)
    outbound.pump()
    keeper.flush()
    assert again == [encode_publish(b"t", b"1", 1, 1, dup=True)]
    outbound.puback(1)
    outbound.pump()
    keeper.flush()
    assert again[1:] == [encode_publish(b"t", b"2", 1, 2, dup=True)]


def test_a_message_that_expired_while_it_waited_is_not_sent() -> None:
    """[MQTT-3.3.2-5]"""
    keeper = Keeper()
    outbound, link, fan_out = make(keeper, 1)
    fan_out.message(Message(b"t", b"1", 1))
    fan_out.message(Message(b"t", b"late", 1, expires_ns=1))
    outbound.puback(1)
    outbound.pump()
    keeper.flush()
    assert len(link) == 1
    assert keeper.counters.messages_expired == 1
