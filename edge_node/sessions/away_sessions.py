"""Sessions whose clients are away, in the order of their disconnection."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from weft.bounds import Owner
from weft.edge_node.sessions.session import Session


class AwaySessions:
    """Sessions without a client: all of them, and by owner, longest away first."""

    def __init__(self) -> None:
        """Start without any."""
        self._all: dict[Session, None] = {}
        self._of: dict[Owner, dict[Session, None]] = {}

    def add(self, session: Session) -> None:
        """Note that a client has gone."""
        self._all[session] = None
        self._of.setdefault(session.owner, {})[session] = None

    def discard(self, session: Session) -> None:
        """Forget a session whose client is back, or that has ended; do nothing if it was not away."""
        if session in self._all:
            del self._all[session]
            own = self._of[session.owner]
            del own[session]
            if not own:
                del self._of[session.owner]

    def longest(self) -> Session | None:
        """Return the session that has been away longest."""
        return next(iter(self._all), None)

    def longest_of(self, owner: Owner) -> Session | None:
        """Return the session of an owner that has been away longest."""
        return next(iter(self._of.get(owner, ())), None)

    def some_of(self, owner: Owner, count: int) -> Iterable[Session]:
        """Return the sessions of an owner that have been away longest."""
        return list(islice(self._of.get(owner, ()), count))
