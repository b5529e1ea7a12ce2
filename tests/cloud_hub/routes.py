"""Ways of edges to hub nodes that name each other: the real rules of both sides, and walls before some edges."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from tests.cloud_hub.fabric import SequencerNode
from tests.cloud_hub.virtual_time import now_ns
from weft.bounds import Refusals
from weft.cloud_hub.links.edge_link import EdgeLink
from weft.protocols.lane import Lane
from weft.protocols.link import PROTOCOL_VERSION, Hello
from weft.replication.attempts import HOPS_MAX, ConnectionEnd, Redirects, Target
from weft.replication.events import LinkState
from weft.replication.runner import LinkRefused

BROKEN = ConnectionEnd(LinkState.WAITING, "cannot connect")
ANYWHERE: Any = None


def name_each_other(nodes: Sequence[SequencerNode], rng: random.Random) -> None:
    """Give nodes what they know of each other: nothing, who has the shard, or, by mistake, one another."""
    kind = rng.choice(["nothing", "owner", "owner", "circle"])
    for number, node in enumerate(nodes):
        match kind:
            case "owner" if number != 0:
                node.names = _url(0)
            case "circle" if len(nodes) > 1:
                node.names = _url((number + 1) % len(nodes))


class Route:
    """Way of one edge to a node that serves it.

    Args:
        walled: numbers of nodes that the edge cannot reach, such as those behind a firewall.
    """

    def __init__(self, lane: Lane, rng: random.Random, walled: frozenset[int] = frozenset()) -> None:
        self._lane = lane
        self._rng = rng
        self._walled = walled
        self._redirects = Redirects(rng)

    def find(self, nodes: Sequence[SequencerNode]) -> SequencerNode | None:
        """Return the node that takes the edge's link, or None when the edge has to wait and try again."""
        open_ones = [number for number in range(len(nodes)) if number not in self._walled]
        target: Target | None = Target(_url(self._rng.choice(open_ones)))
        for _ in range(2 * HOPS_MAX + 2):
            if target is None:
                return None
            number = int(target.url.rpartition(":")[2]) - 1
            outcome = self._ask(nodes[number], number, target)
            now = now_ns() / 1e9
            if outcome is None:
                self._redirects.after(target, BROKEN, taken=True, now=now)
                return nodes[number]
            target = self._redirects.after(target, outcome, taken=False, now=now)
        raise AssertionError("an edge is sent round and round")

    def _ask(self, node: SequencerNode, number: int, target: Target) -> ConnectionEnd | None:
        """Return how the attempt ends, or None when the node takes the link."""
        if node.sequencer is None or number in self._walled:
            return BROKEN
        shards: Any = SimpleNamespace(place=lambda _: 0)
        link = EdgeLink(
            shards, None, now_ns, ANYWHERE, "", refusals=Refusals(lambda: 0.0), elsewhere=lambda _: node.names
        )
        stay = target.stay_s is not None
        hello = Hello(
            PROTOCOL_VERSION, self._lane.tenant, self._lane.edge, self._lane.log_id, 1, now_ns(), "weft", stay=stay
        )
        opening = link.open(hello, cast(Any, SimpleNamespace(send_frame=lambda _: None)))
        try:
            opening.send(None)
        except StopIteration:
            return None
        except LinkRefused as refusal:
            return ConnectionEnd(LinkState.WAITING, refusal.message, refusal.code, refusal.url)
        raise AssertionError("a link waits before it is taken or refused")


def _url(number: int) -> str:
    return f"http://hub:{number + 1}"
