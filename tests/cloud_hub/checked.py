"""Nodes and edges of histories, as the check at their end sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.lane import Lane


class ServingNode(Protocol):
    """A process whose shards are checked: ``SplittingNode``, or ``members.Member``."""

    @property
    def sequencers(self) -> Mapping[int, Sequencer]: ...
    async def sequencer_of(self, lane: Lane) -> Sequencer | None: ...


class CheckedEdge(Protocol):
    """An edge whose records are checked: ``Edge``, or that of ``member_edges``."""

    lane: Lane
    epoch: int

    @property
    def made(self) -> int: ...
