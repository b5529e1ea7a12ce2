"""Refusals by bound and owner, for metrics and the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from weft.bounds.events import Events, SecurityEvent, Severity
from weft.bounds.owner import Owner

logger = logging.getLogger(__name__)

OWNERS_MAX = 100
"""Maximum number of owners named for one bound; the others are counted together. A flood of names must not become a
flood of metrics."""
LINE_INTERVAL_S = 10.0
"""Minimum interval between two log lines about one bound."""


class RefusalCount(NamedTuple):
    """Number of refusals of one owner by one bound."""

    bound: str
    owner: Owner | None
    """None for all owners beyond ``OWNERS_MAX`` together."""
    times: int


class Refusals:
    """Counter of refusals by bound and owner.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.events = Events(clock)
        """Structured lines about refusals, and about logins that failed."""
        self._counts: dict[str, dict[Owner | None, int]] = {}
        self._unsaid: dict[str, int] = {}
        self._next_line: dict[str, float] = {}

    def note(self, bound: str, owner: Owner, advice: str) -> None:
        """Count a refusal and log it, unless a line about the same bound was logged just before.

        Args:
            bound: name of the setting, as an operator writes it, such as ``limits.wills_per_user``.
            advice: the refused thing and the operator's remedy, one sentence.
        """
        owners = self._counts.setdefault(bound, {})
        key = owner if owner in owners or len(owners) < OWNERS_MAX else None
        owners[key] = owners.get(key, 0) + 1
        now = self.clock()
        if now < self._next_line.get(bound, now):
            self._unsaid[bound] = self._unsaid.get(bound, 0) + 1
            return
        self._next_line[bound] = now + LINE_INTERVAL_S
        unsaid = self._unsaid.pop(bound, 0)
        more = f" ({unsaid:,} more refusals by {bound} since the last such line)" if unsaid else ""
        logger.warning("%s reached its share, %s: %s%s", owner, bound, advice, more)
        self.events.note(SecurityEvent.SHARE_USED_UP, Severity.NOTICE, owner, advice, on=bound)

    def __iter__(self) -> Iterator[RefusalCount]:
        for bound, owners in self._counts.items():
            for owner, count in owners.items():
                yield RefusalCount(bound, owner, count)
