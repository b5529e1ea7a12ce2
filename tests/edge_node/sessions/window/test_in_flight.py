"""What was sent and is not completed: bytes are right whatever the client answers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edge_node.sessions.window.clients import Clients
from weft.edge_node.sessions.packets_out import PacketWriter, Wire
from weft.edge_node.sessions.records import Sent
from weft.edge_node.sessions.window import InFlight
from weft.edge_node.subscriptions.limits import MESSAGE_OVERHEAD_BYTES, QueueAccount
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.subscriptions import DeliveryOptions
from weft.protocols.mqtt.encoder import PUBACK
from weft.protocols.mqtt.packets import ProtocolViolation

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
