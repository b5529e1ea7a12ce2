"""States of a client's window, and what moves it from one to another: no socket, no log, no clock.

Where new messages come from, and whether the client can be sent any::

    AWAY --OPENED--> OPENING --GREETED--> RESENDING --RESENT--> BEHIND --NEAR--> JOINING --LEVEL--> LIVE
                                                                   ^--------FELL_BEHIND---+----------'

Each state with a connection has a twin for a socket that takes no more (``PAUSED``, ``RESUMED``). ``LOST`` leads from
every one of them to AWAY.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, auto


class WindowState(IntEnum):
    """State of a window. An integer, because sets of them are asked for every message."""

    AWAY = auto()
    """No connection. A session that stays reads from the log what it misses, once its client is back."""
    OPENING = auto()
    """CONNECT was accepted, CONNACK is not out: the client must not be sent anything yet [MQTT-3.2.0-1]."""
    RESENDING = auto()
    """Packets that the last connection left unanswered go out first [MQTT-4.4.0-1]."""
    BEHIND = auto()
    """Messages are read from the log, and those published now will be."""
    JOINING = auto()
    """The reader is about to be level: messages published now wait in the queue."""
    LIVE = auto()
    """Messages are sent as they are published, as far as the window reaches; the rest waits in the queue."""
    OPENING_BLOCKED = auto()
    RESENDING_BLOCKED = auto()
    BEHIND_BLOCKED = auto()
    JOINING_BLOCKED = auto()
    LIVE_BLOCKED = auto()


class Event(IntEnum):
    """Event that moves a window to another state. An integer, which is found in a table in half the time."""

    OPENED = auto()
    """A client that connects has the session."""
    GREETED = auto()
    """CONNACK is out."""
    RESENT = auto()
    """Everything that the last connection left unanswered is out."""
    NEAR = auto()
    """Only what is not durable yet is missing."""
    LEVEL = auto()
    """Nothing is missing."""
    FELL_BEHIND = auto()
    """The queue did not hold what was published."""
    PAUSED = auto()
    """The socket takes no more."""
    RESUMED = auto()
    """The socket has taken what it was given."""
    LOST = auto()
    """The connection has ended."""


S, E = WindowState, Event
TRANSITIONS: Mapping[WindowState, Mapping[Event, WindowState]] = {
    S.AWAY: {E.OPENED: S.OPENING},
    S.OPENING: {E.GREETED: S.RESENDING, E.PAUSED: S.OPENING_BLOCKED, E.LOST: S.AWAY},
    S.RESENDING: {E.RESENT: S.BEHIND, E.PAUSED: S.RESENDING_BLOCKED, E.LOST: S.AWAY},
    # LEVEL at once: a client that has missed nothing is not read for.
    S.BEHIND: {E.NEAR: S.JOINING, E.LEVEL: S.LIVE, E.PAUSED: S.BEHIND_BLOCKED, E.LOST: S.AWAY},
    S.JOINING: {E.LEVEL: S.LIVE, E.FELL_BEHIND: S.BEHIND, E.PAUSED: S.JOINING_BLOCKED, E.LOST: S.AWAY},
    S.LIVE: {E.FELL_BEHIND: S.BEHIND, E.PAUSED: S.LIVE_BLOCKED, E.LOST: S.AWAY},
    # Reading goes on while the socket is full, up to the first message that there is no room for.
    S.OPENING_BLOCKED: {E.GREETED: S.RESENDING_BLOCKED, E.RESUMED: S.OPENING, E.LOST: S.AWAY},
    S.RESENDING_BLOCKED: {E.RESUMED: S.RESENDING, E.LOST: S.AWAY},
    S.BEHIND_BLOCKED: {E.NEAR: S.JOINING_BLOCKED, E.RESUMED: S.BEHIND, E.LOST: S.AWAY},
    S.JOINING_BLOCKED: {
        E.LEVEL: S.LIVE_BLOCKED, E.FELL_BEHIND: S.BEHIND_BLOCKED, E.RESUMED: S.JOINING, E.LOST: S.AWAY,
    },
    S.LIVE_BLOCKED: {E.FELL_BEHIND: S.BEHIND_BLOCKED, E.RESUMED: S.LIVE, E.LOST: S.AWAY},
}  # fmt: skip
"""State -> event -> the state that follows. What is not here cannot happen."""

CONNECTED = frozenset(WindowState) - {S.AWAY}
"""The client is there: what only memory has may wait for it."""
SENDING = frozenset({S.RESENDING, S.BEHIND, S.JOINING, S.LIVE})
"""The socket takes packets."""
TAKING_NEW = SENDING - {S.RESENDING}
"""Messages that the client was never sent can go out, as far as the window reaches."""
QUEUEING = frozenset({S.JOINING, S.LIVE, S.JOINING_BLOCKED, S.LIVE_BLOCKED})
"""A message published now, and not sent, waits in the queue; else it is read from the log."""


def after(state: WindowState, event: Event) -> WindowState:
    """Return the state after an event.

    Raises:
        AssertionError: the event cannot happen in this state: a bug of ours.
    """
    following = TRANSITIONS[state].get(event)
    assert following is not None, f"{event.name} while {state.name}"
    return following


def can(state: WindowState, event: Event) -> bool:
    """Return whether an event means anything in a state."""
    return event in TRANSITIONS[state]
