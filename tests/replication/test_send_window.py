"""The window of a sender: it follows the rate of acknowledgements."""

from __future__ import annotations

from weft.replication.flow_control import START_BYTES, SendWindow
from weft.replication.liveness import SECOND

COMMIT = SECOND // 4
MOST = 8 << 20


def test_a_hub_that_acknowledges_all_at_once_gets_as_much_as_it_can_take() -> None:
    """Each commit acknowledges everything on the way, so no period is ever longer than a commit."""
    window, now = SendWindow(), 0
    window.allow(MOST)
    for _ in range(4):
        window.sent(1, 99, now, was_empty=True)
        window.was_full()
        now += COMMIT
        window.acknowledged(window.bytes, 1, 0, 100, now)
    window.sent(1, 99, now, was_empty=True)
    assert window.bytes == MOST


def test_one_batch_longer_than_the_window_lets_it_grow() -> None:
    window, now = SendWindow(), 0
    window.allow(MOST)
    for _ in range(3):
        window.sent(1, 99, now, was_empty=True)
        now += COMMIT
        window.acknowledged(2 * START_BYTES, 1, 0, 100, now)
    window.sent(1, 99, now, was_empty=True)
    assert window.bytes > 8 * START_BYTES


def test_a_sender_that_has_little_to_send_learns_nothing() -> None:
    window, now = SendWindow(), 0
    window.allow(MOST)
    for _ in range(10):
        window.sent(1, 99, now, was_empty=True)
        now += COMMIT
        window.acknowledged(1000, 1, 0, 100, now)
    assert window.bytes == START_BYTES


def test_a_lane_that_was_closed_is_measured_no_more() -> None:
    """Its acknowledgement never comes. Without another probe the window would stay as it is for good."""
    window, now = SendWindow(), 0
    window.allow(MOST)
    window.sent(1, 99, now, was_empty=True)
    window.forget(2)  # another lane's end changes nothing
    window.forget(1)
    window.sent(3, 7, now, was_empty=False)
    window.was_full()
    now += COMMIT
    window.acknowledged(2 * START_BYTES, 3, 0, 8, now)
    window.sent(3, 9, now, was_empty=True)
    assert window.bytes > START_BYTES
