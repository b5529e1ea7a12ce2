"""Places of links in the log, as a start finds them."""

from __future__ import annotations

import time

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import commit_all, open_log
from weft.bounds import Bound, Owner, OwnerKind, Quota, Refusals
from weft.edge_node.servers.amqp1.context import VERSION, LinkName, PersistedLink, PersistedLinks

NAME = LinkName(Owner(OwnerKind.USER, "ann"), "container", "link")


async def test_a_link_does_not_pass_over_messages_that_have_the_numbers_of_lost_ones() -> None:
    """What is written of a link may outlive messages of the same commit, when the power fails during that."""
    log = open_log(FakeFileSystem())
    stream = log.stream("telemetry")
    log.append(stream, 0, [b"plant/1"] * 3, [b"0", b"1", b"2"])

    def links() -> PersistedLinks:
        return PersistedLinks(log, Bound(Quota("limits.sessions", 4, 4, ""), Refusals(time.monotonic)), lambda: 0, 60)

    def sent(kept: PersistedLink) -> None:
        kept.positions, kept.owed = {"telemetry": 9, "gone": 7}, {"telemetry": [1, 7], "gone": [2]}

    state = PersistedLink(VERSION, ("user", "ann"), "container", "link", "plant/#", "plant/#")
    assert links().attach(NAME, state, sent, 60)
    commit_all(log)
    found = links()
    found.load()
    kept = found.get(NAME)
    assert kept is not None
    assert kept.positions == {"telemetry": 3, "gone": 0}
    assert kept.owed == {"telemetry": [1], "gone": []}
    log.close()


async def test_a_link_that_was_attached_in_a_crash_is_kept_for_its_time() -> None:
    """A client needs longer to come back than the node needs to save its links for the first time."""
    log, now = open_log(FakeFileSystem()), 10**18

    def links() -> PersistedLinks:
        bound = Bound(Quota("limits.sessions", 4, 4, ""), Refusals(time.monotonic))
        return PersistedLinks(log, bound, lambda: now, 60)

    state = PersistedLink(VERSION, ("user", "ann"), "container", "link", "plant/#", "plant/#")
    assert links().attach(NAME, state, lambda _: None, float("inf"))
    commit_all(log)
    found = links()
    found.load()
    now += 59 * 10**9
    found.save()
    assert found.get(NAME) is not None
    now += 2 * 10**9
    found.save()
    assert found.get(NAME) is None
    log.close()
