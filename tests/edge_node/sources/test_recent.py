from __future__ import annotations

from weft.edge_node.sources.connection import NEW_MAX, RECENT_MAX, Recent


def taken(recent: Recent, *numbers: int) -> list[bool]:
    return [recent.is_again(b"topic", b"%d" % number) for number in numbers]


def test_equal_messages_of_one_connection_are_messages() -> None:
    assert not any(taken(Recent(), 1, 1, 1))


def test_what_came_before_is_known_once_on_the_next_connection() -> None:
    recent = Recent()
    taken(recent, 1, 2, 2)
    recent.reconnected()
    assert taken(recent, 2, 2, 2, 1, 3, 1) == [True, True, False, True, False, False]


def test_nothing_is_expected_any_more_behind_new_messages() -> None:
    recent = Recent()
    taken(recent, 1)
    recent.reconnected()
    taken(recent, *range(1000, 1000 + NEW_MAX))
    assert taken(recent, 1) == [False]


def test_the_memory_is_bounded() -> None:
    recent = Recent()
    taken(recent, *range(RECENT_MAX + 1))
    recent.reconnected()
    assert taken(recent, 0, 1) == [False, True]
