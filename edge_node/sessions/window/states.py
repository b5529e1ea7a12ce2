"""States of a client's window and the events between them: no socket, no log, no clock.

Where new messages come from, and whether the client can be sent any::

    AWAY --OPENED--> OPENING --GREETED--> RESENDING --RESENT--> BEHIND --NEAR--> JOINING --LEVEL--> LIVE
                                                                   ^--------FELL_BEHIND---+----------'

Each state with a connection has a twin for a full socket (``PAUSED``, ``RESUMED``). ``LOST`` leads from every one of
them to AWAY.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, auto


class WindowState(IntEnum):
    """State of a window. An integer, because sets of them are checked for every message."""

    AWAY = auto()
    """No connection. A persistent session reads missed messages from the log, once its client is back."""
    OPENING = auto()
    """CONNECT was accepted, CONNACK is not out: the client must not be sent anything yet [MQTT-3.2.0-1]."""
    RESENDING = auto()
    """Packets that the last connection left unanswered go out first [MQTT-4.4.0-1]."""
    BEHIND = auto()
    """Messages are read from the log, also the ones published now."""
    JOINING = auto()
    """The reader is about to be level: messages published now wait in the queue."""
    LIVE = auto()
    """Messages are sent as they are published, as far as the window has room; the rest waits in the queue."""
    OPENING_BLOCKED = auto()
    RESENDING_BLOCKED = auto()
    BEHIND_BLOCKED = auto()
    JOINING_BLOCKED = auto()
    LIVE_BLOCKED = auto()


class Event(IntEnum):
    """Event that moves a window to another state. An integer, for which a table look-up takes half the time."""

    OPENED = auto()
    """A client has connected to the session."""
    GREETED = auto()
    """CONNACK is out."""
    RESENT = auto()
    """All packets that the last connection left unanswered are sent."""
    NEAR = auto()
    """Only records that are not durable yet are missing."""
    LEVEL = auto()
    """Nothing is missing."""
    FELL_BEHIND = auto()
    """The queue had no room for a published message."""
    PAUSED = auto()
    """The socket is full."""
    RESUMED = auto()
    """The socket has room again."""
    LOST = auto()
    """The connection has ended."""


S, E = WindowState, Event
TRANSITIONS: Mapping[WindowState, Mapping[Event, WindowState]] = {
    S.AWAY: {E.OPENED: S.OPENING},
    S.OPENING: {E.GREETED: S.RESENDING, E.PAUSED: S.OPENING_BLOCKED, E.LOST: S.AWAY},
    S.RESENDING: {E.RESENT: S.BEHIND, E.PAUSED: S.RESENDING_BLOCKED, E.LOST: S.AWAY},
    # LEVEL at once: a client that has missed nothing needs no reader.
    S.BEHIND: {E.NEAR: S.JOINING, E.LEVEL: S.LIVE, E.PAUSED: S.BEHIND_BLOCKED, E.LOST: S.AWAY},
    S.JOINING: {E.LEVEL: S.LIVE, E.FELL_BEHIND: S.BEHIND, E.PAUSED: S.JOINING_BLOCKED, E.LOST: S.AWAY},
    S.LIVE: {E.FELL_BEHIND: S.BEHIND, E.PAUSED: S.LIVE_BLOCKED, E.LOST: S.AWAY},
    # Reading continues while the socket is full, up to the first message without room.
    S.OPENING_BLOCKED: {E.GREETED: S.RESENDING_BLOCKED, E.RESUMED: S.OPENING, E.LOST: S.AWAY},
    S.RESENDING_BLOCKED: {E.RESUMED: S.RESENDING, E.LOST: S.AWAY},
    S.BEHIND_BLOCKED: {E.NEAR: S.JOINING_BLOCKED, E.RESUMED: S.BEHIND, E.LOST: S.AWAY},
    S.JOINING_BLOCKED: {
        E.LEVEL: S.LIVE_BLOCKED, E.FELL_BEHIND: S.BEHIND_BLOCKED, E.RESUMED: S.JOINING, E.LOST: S.AWAY,
    },
    S.LIVE_BLOCKED: {E.FELL_BEHIND: S.BEHIND_BLOCKED, E.RESUMED: S.LIVE, E.LOST: S.AWAY},
}  # fmt: skip
"""State -> event -> next state. Other combinations cannot happen."""

CONNECTED = frozenset(WindowState) - {S.AWAY}
"""The client is connected: messages that only memory has may wait for it."""
SENDING = frozenset({S.RESENDING, S.BEHIND, S.JOINING, S.LIVE})
"""The socket takes packets."""
TAKING_NEW = SENDING - {S.RESENDING}
"""Messages never sent to the client can be sent, as far as the window has room."""
QUEUEING = frozenset({S.JOINING, S.LIVE, S.JOINING_BLOCKED, S.LIVE_BLOCKED})
"""A message published now, and not sent, waits in the queue; else it is read from the log."""


def after(state: WindowState, event: Event) -> WindowState:
    """Return the state after an event.

    Raises:
        AssertionError: the event cannot happen in this state: a bug in the node.
    """
    following = TRANSITIONS[state].get(event)
    assert following is not None, f"{event.name} while {state.name}"
    return following


def can(state: WindowState, event: Event) -> bool:
    """Return whether an event can happen in a state."""
    return event in TRANSITIONS[state]
