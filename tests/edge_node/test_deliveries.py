from edge_node.deliveries import MESSAGE_OVERHEAD_BYTES, Deliveries, QueueBudget
from protocols.mqtt.encoder import encode_publish

ROOM = MESSAGE_OVERHEAD_BYTES + 1


def test_sends_in_order_as_far_as_the_window_reaches() -> None:
    deliveries = Deliveries(2, 1 << 20, QueueBudget(1 << 20))
    for payload in (b"1", b"2", b"3"):
        assert deliveries.offer(b"t", payload)
    assert deliveries.sendable() == [encode_publish(b"t", b"1", 1, 1), encode_publish(b"t", b"2", 1, 2)]
    assert deliveries.sendable() == []
    deliveries.acknowledged(99)
    deliveries.acknowledged(1)
    assert deliveries.sendable() == [encode_publish(b"t", b"3", 1, 3)]
    assert deliveries.unacknowledged() == [
        encode_publish(b"t", b"2", 1, 2, dup=True),
        encode_publish(b"t", b"3", 1, 3, dup=True),
    ]


def test_both_bounds_hold_and_acknowledgements_make_room() -> None:
    budget = QueueBudget(3 * ROOM)
    one, two = Deliveries(10, 2 * ROOM, budget), Deliveries(10, 2 * ROOM, budget)
    assert [one.offer(b"t", b"x") for _ in range(3)] == [True, True, False]
    assert [two.offer(b"t", b"x") for _ in range(2)] == [True, False]
    one.sendable()
    one.acknowledged(1)
    assert two.offer(b"t", b"x")
    one.clear()
    two.clear()
    assert budget.used == 0


def test_packet_identifiers_wrap_around_those_in_flight() -> None:
    deliveries = Deliveries(2, 1 << 20, QueueBudget(1 << 20))
    deliveries.offer(b"t", b"first")
    deliveries.sendable()
    for _ in range(65_534):
        deliveries.offer(b"t", b"")
        deliveries.sendable()
        deliveries.acknowledged(deliveries._last_id)
    deliveries.offer(b"t", b"again")
    assert deliveries.sendable() == [encode_publish(b"t", b"again", 1, 2)]
