"""The table of a window's states, without any window: what a client's life makes of it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weft.edge_node.sessions.window import (
    CONNECTED,
    QUEUEING,
    SENDING,
    TAKING_NEW,
    TRANSITIONS,
    Event,
    WindowState,
    after,
    can,
)


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
