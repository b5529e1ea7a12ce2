"""Rates at which owners may change their sessions: a change is a record of the journal, and work to fold it."""

from __future__ import annotations

from collections.abc import Callable

from weft.bounds import Owner, Rates, Refusals

BURST_S = 4.0
"""Seconds of changes that an owner may make at once, such as when all its devices come back."""


class ChangeRates:
    """Bytes of the session journal that each owner has caused lately. Owner's thread only.

    Changes are charged after the fact, so an owner may be in debt. Until it is out of that, its clients wait.

    Args:
        noted: bytes written to the journal since the start.
        bytes_per_s: long-term rate of one owner.
        refusals: counts refused owners.
    """

    def __init__(self, noted: Callable[[], int], bytes_per_s: int, refusals: Refusals) -> None:
        self._noted = noted
        self._rates: Rates[Owner] = Rates(bytes_per_s, bytes_per_s * BURST_S, refusals.clock)
        self._refusals = refusals

    def charge(self, owner: Owner, change: Callable[[], None]) -> None:
        """Make a change, and charge its journal bytes to the owner."""
        before = self._noted()
        try:
            change()
        finally:
            more = self._noted() - before
            if more:
                self._rates.charge(owner, more)

    def wait_s(self, owner: Owner) -> float:
        """Return the seconds until the owner may change its sessions again."""
        return self._rates.debt_s(owner)

    def refuse(self, owner: Owner) -> None:
        """Count the refusal of an owner's client, which must retry later."""
        advice = "its sessions change too often; look for clients that come and go, or raise state.journal_per_user"
        self._refusals.note("state.journal_per_user", owner, advice)
