"""Checks of payloads against the schemas of streams, before the records are in the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from weft.edge_node.ingest.routes import CHECK_COST, FIELD_COST, Destination, Misfits, Parted, Route

Policy = Literal["accept", "dead_letter", "refuse"]
Check = Callable[[bytes], Sequence[tuple[str, str]]]
"""Function of a payload that returns the fields that do not fit, each with the reason."""
REASON_CHARACTERS_MAX: Final = 500
"""Longest reason in a record's header, and in an answer."""


@dataclass(slots=True)
class CheckFigures:
    """Figures of one stream since the node started. Messages that the log has no room for, and that come again, count
    each time."""

    checked: int = 0
    unchecked: int = 0
    """Messages that were too long for a check, and were stored."""
    accepted: int = 0
    """Misfits that were stored in the stream."""
    dead_lettered: int = 0
    """Misfits that were stored in the stream of errors."""
    refused: int = 0
    fields: str = ""
    """Names of the fields of the last misfit, without its values; empty before the first."""


class StreamCheck:
    """The check of one stream. Event loop's thread only."""

    __slots__ = ("_beside", "_check", "_letters", "_unchecked", "cost", "figures", "name", "policy", "stream", "watch")

    def __init__(  # noqa: PLR0917
        self, name: str, stream: int, errors: int, policy: Policy, check: Check, unchecked: range,
        figures: CheckFigures, watch: Callable[[], None], *, fields: int,
    ) -> None:  # fmt: skip
        """Describe the check.

        Args:
            stream: number of the stream.
            errors: number of its stream of errors; anything for ``accept``.
            unchecked: lengths of payloads that would take too long. Longer ones than these do not fit, at once.
            watch: called after each misfit.
            fields: number of the fields of the schema.
        """
        self.name, self.stream, self.policy = name, stream, policy
        self._check, self._unchecked = check, unchecked
        self.figures, self.watch = figures, watch
        self.cost = CHECK_COST + FIELD_COST * fields
        self._letters = _route_to(errors)
        self._beside = _route_to(errors, is_beside=True)

    def look(self, payload: bytes) -> str:
        """Return why a payload does not fit; empty if it does, or is too long for a check."""
        figures = self.figures
        if len(payload) in self._unchecked:
            figures.unchecked += 1
            return ""
        figures.checked += 1
        found = self._check(payload)
        if not found:
            return ""
        figures.fields = ", ".join(name for name, _ in found)
        return "; ".join(f"{name}: {reason}" for name, reason in found)[:REASON_CHARACTERS_MAX]

    def letters(self, *, beside: bool) -> Route:
        """Return the route of a dead letter.

        Args:
            beside: whether the message goes elsewhere, too, so that it is counted there.
        """
        return self._beside if beside else self._letters


def _route_to(stream: int, *, is_beside: bool = False) -> Route:
    destination = Destination((stream,), kept_for_sessions=False, unrouted=False, is_beside=is_beside)
    return Route(destination, live=0, marked=False)


class Checks:
    """Checks of the messages of one route. Event loop's thread only."""

    __slots__ = ("_all", "_destination", "cost", "refuses")

    def __init__(self, checks: Sequence[StreamCheck], destination: Destination) -> None:
        """Join the checks of a destination's streams."""
        self._all = checks
        self._destination = destination
        self.cost = sum(check.cost for check in checks)
        self.refuses = any(check.policy == "refuse" for check in checks)

    def look(self, payload: bytes) -> Misfits:
        """Check a payload. Pass the answer on to ``refusal`` and ``place``: each of the two counts misfits."""
        found = [(each, why) for each in self._all if (why := each.look(payload))]
        return found or ()

    def hides(self, misfits: Misfits) -> bool:
        """Return whether neither subscribers nor queues get a message. They get what the first stream of its topic has:
        sessions read that one later, and would get the messages of a topic in another order with those of another."""
        first = self._destination.streams[0]
        return is_refused(misfits) or any(check.stream == first and check.policy != "accept" for check, _ in misfits)

    def place(self, misfits: Misfits) -> Parted | None:
        """Return where a message goes that is stored although it may not fit; None for where its route says.

        A message that should be refused, and whose sender gets no answer, goes to the errors alone.
        """
        letters: list[tuple[StreamCheck, str]] = []
        for check, why in misfits:
            if check.policy == "accept":
                check.figures.accepted += 1
            else:
                check.figures.dead_lettered += 1
                letters.append((check, why))
            check.watch()
        if not letters:
            return None
        destination, left = self._destination, frozenset(check.stream for check, _ in letters)
        is_elsewhere = bool(destination.before_log) or not left.issuperset(destination.streams)
        goes_on = is_elsewhere and not is_refused(misfits)
        routes = [(check.letters(beside=goes_on or at > 0), why) for at, (check, why) in enumerate(letters)]
        return Parted(routes, left, goes_on, self.hides(misfits))


def is_refused(misfits: Misfits) -> bool:
    """Return whether a stream refuses a message with these misfits."""
    return any(check.policy == "refuse" for check, _ in misfits)


def refusal(route: Route, misfits: Misfits) -> str:
    """Count a message that is refused, and return the reason for its sender; empty if no stream refuses it.

    Call it only where the protocol has such an answer. The message must not be stored then.
    """
    for check, why in misfits:
        if check.policy == "refuse":
            check.figures.refused += 1
            check.watch()
            if route.queues is not None:
                route.queues.withdraw()
            return f"it does not fit the schema of stream {check.name}: {why}"
    return ""
