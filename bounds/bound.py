"""A bound with a name: shares whose refusals are counted."""

from __future__ import annotations

from weft.bounds.owner import Owner
from weft.bounds.refusals import Refusals
from weft.bounds.shares import Shares

HEAVIEST_S = 1.0
"""Time for which the heaviest owner is remembered: finding it takes time for each owner."""


class Bound(Shares[Owner]):
    """Units of one thing that owners share.

    Args:
        total: units that all owners together may have.
        share: units that one owner may have.
        refusals: counter of the refusals.
        setting: name of the setting of the total, such as ``limits.wills``.
        share_setting: name of the setting of the share.
        what: the thing, for the log, such as ``wills``.
    """

    __slots__ = ("_heaviest", "_look_at", "_refusals", "_setting", "_share_setting", "_what")

    def __init__(  # noqa: PLR0917
        self, total: int, share: int, refusals: Refusals, setting: str, share_setting: str, what: str
    ) -> None:
        super().__init__(total, share)
        self._refusals = refusals
        self._setting = setting
        self._share_setting = share_setting
        self._what = what
        self._heaviest: Owner | None = None
        self._look_at = float("-inf")

    def refuse(self, owner: Owner, units: int = 1) -> None:
        """Count a refusal of units to an owner."""
        setting = self._share_setting if self.is_own_share_full(owner, units) else self._setting
        self._refusals.note(setting, owner, f"no room for more {self._what}; raise {setting} if it is to have more")

    def heavier(self, owner: Owner) -> Owner | None:
        """Return the owner with the most units, as of about a second ago; None unless it is this one or has more."""
        now = self._refusals.clock()
        if now >= self._look_at:
            self._look_at = now + HEAVIEST_S
            self._heaviest = self.heaviest()
        found = self._heaviest
        return found if found is not None and (found == owner or self.taken(found) > self.taken(owner)) else None
