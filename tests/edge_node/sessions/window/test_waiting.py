"""What waits for room."""

from tests.edge_node.sessions.window.clients import ROOM
from weft.edge_node.sessions.window import Delivery, Waiting
from weft.edge_node.subscriptions.limits import QueueAccount, QueueBudget
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.subscriptions import DeliveryOptions


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
