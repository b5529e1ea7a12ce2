"""The pulls of the cluster log, by edge."""

from __future__ import annotations

from weft.cloud_hub.declared.documents import PULL, PullDocument, UnreadableDocument, decode
from weft.protocols.lane import NodeName
from weft.protocols.link.pull import PULLS_MAX, PullRequest
from weft.storage.cluster_log.state import ClusterState, Fact


class KnownPulls:
    """The pulls that a process knows, as of the last ``refresh``."""

    def __init__(self) -> None:
        self._documents: dict[str, PullDocument] = {}
        self._running: dict[NodeName, dict[str, PullDocument]] = {}
        """Edge -> name -> pull that is not over."""
        self._seen: tuple[ClusterState, int] | None = None
        self._facts: dict[str, Fact] = {}
        self._ahead: dict[str, Fact] = {}
        """Facts that this process wrote, until the followed state has them."""
        self.unusable: dict[str, str] = {}
        """Names of facts that cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> bool:
        """Take over the declarations of the cluster log, if there is an entry about a pull since the last call.

        Returns:
            Whether there was one.
        """
        last = state.last(PULL)
        if self._seen is not None and self._seen[0] is state and self._seen[1] == last:
            return False
        self._seen, self._facts = (state, last), dict(state.facts(PULL))
        self._ahead = {name: fact for name, fact in self._ahead.items() if fact.version > state.n}
        self._take()
        return True

    def note(self, name: str, state: ClusterState) -> None:
        """Take over a pull that this process has written, before the followed state has it.

        Args:
            state: that of the log after the entry.
        """
        fact, known = state.facts(PULL).get(name), self._facts.get(name)
        if fact is not None and (known is None or known.version < fact.version):
            self._ahead[name] = fact
            self._take()

    def _take(self) -> None:
        self._documents, self._running, self.unusable = {}, {}, {}
        for name, fact in (self._facts | self._ahead).items():
            try:
                document = decode(fact.document, PullDocument)
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
                continue
            self._documents[name] = document
            if not document.is_over:
                edge = NodeName(name.partition("/")[0], document.edge)
                self._running.setdefault(edge, {})[name] = document

    @property
    def documents(self) -> dict[str, PullDocument]:
        """Return all pulls by the names of their facts, in the order of their last change."""
        return self._documents

    @property
    def edges(self) -> list[NodeName]:
        """Return the edges that are asked for something."""
        return list(self._running)

    def is_running(self, name: str) -> bool:
        """Return whether there is such a pull, and it is not over."""
        document = self._documents.get(name)
        return document is not None and not document.is_over

    def running(self, edge: NodeName) -> dict[str, PullDocument]:
        """Return the pulls that an edge is asked for, by name, the oldest first."""
        found = self._running.get(edge)
        if found is None:
            return {}
        return dict(sorted(found.items(), key=lambda each: (each[1].asked, each[0]))[:PULLS_MAX])


def request_of(name: str, document: PullDocument) -> PullRequest:
    """Return a pull as the edge gets it."""
    return PullRequest(
        name.partition("/")[2], document.stream, document.first, document.end, document.bytes_max
    )  # fmt: skip
