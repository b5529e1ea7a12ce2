"""Open links of a process: what continues after an error in the midst of it, and who makes room where it is full."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.virtual_time import now_ns
from tests.support.silence import silent_logs
from weft.bounds import Refusals
from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.facts.tokens import Credentials
from weft.cloud_hub.links.edge_link import EdgeLink
from weft.cloud_hub.links.open_links import LOOK_INTERVAL_S, SEND_ON_INTERVAL_S, OpenLinks
from weft.hub_api.answers import ApiError
from weft.hub_api.rights import Scope
from weft.protocols.link import RefuseCode


class Failing(OpenLinks):
    """Links whose two tasks meet an error at every step."""

    sent_on = ended = 0

    async def send_on(self, within_s: float | None = None) -> None:
        self.sent_on += 1
        raise ValueError(within_s)

    def end_revoked(self) -> None:
        self.ended += 1
        raise ValueError


def test_after_an_error_edges_are_still_sent_on_and_links_of_revoked_tokens_ended() -> None:
    async def main() -> None:
        links = Failing(10, 10, Refusals(lambda: 0.0), now_ns, Credentials(False, now_ns))
        with silent_logs():
            links.start()
            await asyncio.sleep(3.5 * SEND_ON_INTERVAL_S)
            await links.close()
        assert (links.sent_on, links.ended) == (3, int(3.5 * SEND_ON_INTERVAL_S / LOOK_INTERVAL_S))

    virtual_time.run(main())


class Link:
    """A link that says why it ended."""

    hello = None

    def __init__(self) -> None:
        self.why = ""

    @property
    def is_over(self) -> bool:
        return bool(self.why)

    def end(self, code: RefuseCode, message: str, advice: str) -> None:
        self.why = message


class Full:
    """A process whose total can be used up."""

    def __init__(self, total: int) -> None:
        self.refusals = Refusals(lambda: 0.0)
        self.links = OpenLinks(total, 8, self.refusals, lambda: 0, Credentials(False, lambda: 0))
        self._held = contextlib.ExitStack()

    def come(self, tenant: str, edge: int) -> Link:
        """An edge connects with a token of its own.

        Raises:
            ApiError: the hub is full.
        """
        identity = TokenIdentity(f"{tenant}-{edge}", "00", Scope.EDGE, tenant, f"edge-{edge}")
        self.links.check_room(identity)
        link = Link()
        self._held.enter_context(self.links.opened(cast(EdgeLink, link), identity))
        return link


def test_a_tenant_with_many_tokens_makes_room_for_another_tenants_edge() -> None:
    hub = Full(16)
    evil = [hub.come("evil", number) for number in range(16)]
    with pytest.raises(ApiError, match="16 links, its limit"):
        hub.come("evil", 16)
    good = [hub.come("good", number) for number in range(4)]
    assert [bool(link.why) for link in evil] == [True] * 4 + [False] * 12, "its oldest go"
    assert not any(link.why for link in good)
    assert "tenant evil has most of them" in evil[0].why
    assert [(found.bound, str(found.owner), found.times) for found in hub.refusals] == [
        ("limits.links", "tenant evil", 5)
    ]


def test_the_total_is_passed_by_some_that_are_ending_only() -> None:
    hub = Full(64)
    for number in range(64):
        hub.come("evil", number)
    come = 0
    with contextlib.suppress(ApiError):
        while come < 64:
            hub.come("good", come)
            come += 1
    assert 0 < come < 64
    assert len(hub.links) <= 64 + 16
