"""A session, without anything around it."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from tests.edge_node.sessions.window.clients import Clients
from weft.bounds import user_or_address
from weft.edge_node.access.identity import Identity
from weft.edge_node.sessions.packets_out import Wire
from weft.edge_node.sessions.records import NEVER_EXPIRES, Sent, SessionRecord
from weft.edge_node.sessions.session import Absence, Session, Terms, seconds_left
from weft.edge_node.sessions.window import ClientWindow
from weft.protocols.mqtt.packets import Will


def make() -> Session:
    clients = Clients()
    return Session(
        ClientWindow("c", Wire(5), clients.context, clients.fall_behind), 5, lambda _: None, user_or_address(None, "")
    )


RECORDS = st.builds(
    SessionRecord,
    st.just("c"),
    st.sampled_from([3, 4, 5]),
    st.integers(1, NEVER_EXPIRES),
    st.none() | st.text(),
    st.none() | st.integers(0, 1 << 60),
    st.booleans(),
    st.none() | st.integers(0, 1 << 60),
    inflight=st.dictionaries(
        st.integers(1, 99), st.builds(Sent, st.integers(1, 9), st.integers(0, 99), st.just(2), st.booleans())
    ),
    received=st.sets(st.integers(1, 65_535)),
)


@given(RECORDS)
def test_a_record_comes_back_as_it_was(record: SessionRecord) -> None:
    session = make()
    session.restore(record)
    assert session.record({}, set(), {}) == record
    assert list(session.record({}, set(), {}).inflight) == list(record.inflight), "in the order of sending"


def test_a_session_that_ends_with_its_connection_is_kept_for_its_will_alone() -> None:
    session, will = make(), Will(b"t", b"gone", 1)
    session.agree(Terms(4, 0, "user"))
    session.keep_will(will)
    session.received.add(7)
    assert session.record({1: 2}, {(1, 3)}, {}) == SessionRecord("c", 4, 0, "user", will=will)


def test_the_earlier_of_will_and_end_is_what_is_due() -> None:
    session, will = make(), Will(b"t", b"gone", 1)
    assert session.next_due() is None
    session.be_absent(Absence(expires_at=10.0))
    assert session.next_due() == 10
    session.keep_will(will, 5.0)
    assert session.next_due() == 5
    session.keep_will(will)
    assert session.next_due() == 10
    session.end()
    assert session.next_due() is None


def test_who_may_do_everything_is_not_asked() -> None:
    class Someone:
        unrestricted = True

    session, someone = make(), Someone()
    identity = cast(Identity, someone)
    session.agree(Terms(5, 9, None, identity))
    assert (session.rules, session.identity) == (None, identity)
    someone.unrestricted = False
    assert session.rules is identity
    assert session.window.persistent


def test_some_sessions_last_for_ever() -> None:
    assert seconds_left(NEVER_EXPIRES, 1e9) is None
    assert seconds_left(10, 4) == 6
    assert seconds_left(10, 11) == 0
