"""Edges without which streams are not complete: declared in the cluster log, or in this host's configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from weft.cloud_hub.declared.documents import STREAM, StreamDocument, UnreadableDocument, decode, parse_stream_name
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.cluster_log.state import ClusterState

_logger = logging.getLogger(__name__)
NAMED_MAX = 20
"""Maximum number of streams that a line of the log names."""


class ExpectedEdges(Mapping[StreamKey, tuple[str, ...]]):
    """(tenant, stream) -> names and patterns of edges.

    The word of the cluster log about a stream wins: hosts with different configurations would disagree about what is
    complete.

    Args:
        configured: of this host's configuration.
    """

    def __init__(self, configured: Mapping[StreamKey, tuple[str, ...]]) -> None:
        self._configured = configured
        self._edges = dict(configured)
        self._overruled: frozenset[str] = frozenset()
        self._seen: tuple[ClusterState, int] | None = None
        """The state as of the last ``refresh``, with its last entry about a stream."""
        self.unusable: dict[str, str] = {}
        """Names of streams whose declaration cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> None:
        """Take over the declarations of the cluster log. They are read only after an entry about a stream: the log of a
        fleet has many others."""
        last = state.last(STREAM)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return
        self._seen = state, last
        found: dict[StreamKey, tuple[str, ...]] = {}
        self.unusable = {}
        for name, fact in state.facts(STREAM).items():
            try:
                edges = decode(fact.document, StreamDocument).expected_edges
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
                continue
            if edges is not None:
                found[parse_stream_name(name)] = edges
        self._edges = {**self._configured, **found}
        given = {key: edges for key, edges in self._configured.items() if edges}
        overruled = frozenset("/".join(key) for key in given.keys() & found.keys() if given[key] != found[key])
        if overruled - self._overruled:
            _logger.warning(
                "expected_edges of this configuration does not count where the cluster log declares other edges: %s",
                ", ".join(sorted(overruled)[:NAMED_MAX]),
            )
        self._overruled = overruled

    def __getitem__(self, key: StreamKey) -> tuple[str, ...]:
        return self._edges[key]

    def __iter__(self) -> Iterator[StreamKey]:
        return iter(self._edges)

    def __len__(self) -> int:
        return len(self._edges)
