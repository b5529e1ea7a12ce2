"""A budget of the hub's work for frames of links that carry no records: marks, gaps, questions, openings of lanes.

The window of a link does not count them, and compressed they are next to nothing: 100 bytes on the wire can be 8,000
marks of lanes. An honest link stays far below; one that is beyond its share is read later, and what it sent goes with
it when it has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weft.bounds import Owner, Rates, Refusals
from weft.protocols.link import RefuseCode
from weft.replication.runner import LinkRefused, LinkSession

COST_PER_S = 2 << 20
"""Cost of frames of one token's links in a second, as turns of links count it: some 5 % of a core. A link with 4,096
lanes that all send data takes a quarter of it."""
COST_AT_ONCE = 32 << 20
"""The same at once, for the opening of an edge's lanes with all that their bounds allow."""
TENANT = 4
"""Shares of a token that one tenant has."""
LOOK_S = 1.0
"""Longest time without a look whether the edge of a link that waits has left."""
BOUND = "frames of links"


class FrameBudget:
    """The budget of all links of a hub process.

    Args:
        refusals: counter of the links that had to wait.
        clock: monotonic seconds.
    """

    def __init__(self, refusals: Refusals, clock: Callable[[], float]) -> None:
        self._refusals = refusals
        self._of_token: Rates[object] = Rates(COST_PER_S, COST_AT_ONCE, clock)
        self._of_tenant: Rates[str] = Rates(TENANT * COST_PER_S, TENANT * COST_AT_ONCE, clock)

    async def pay(self, link: LinkSession, holder: object, edge: Owner) -> None:
        """Pay for the frames of a link since the last call, with waiting where its token or tenant has used more than
        its share.

        Args:
            holder: who has the token of the link.
            edge: the edge of the link.

        Raises:
            LinkRefused: the edge has left, and would have had to wait.
        """
        cost, tenant = link.control_cost(), edge.name.partition("/")[0]
        if not cost:
            return
        self._of_token.charge(holder, cost)
        self._of_tenant.charge(tenant, cost)
        is_noted = False
        while (wait_s := max(self._of_token.debt_s(holder), self._of_tenant.debt_s(tenant))) > 0:
            if link.edge_has_left:
                raise LinkRefused(RefuseCode.OVERLOADED, "it sent more frames than its share, and left", "nothing")
            if not is_noted:
                advice = "the hub reads more of it later. Find out why it sends so many marks, gaps or lanes"
                self._refusals.note(BOUND, edge, advice)
                is_noted = True
            await asyncio.sleep(min(wait_s, LOOK_S))
