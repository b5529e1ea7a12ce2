"""Something that many owners share: how much there is, and how much of it one owner may have."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

OwnerT = TypeVar("OwnerT", bound=Hashable)
SHARES = 4
"""Owners that can take a whole total together, where nothing else is set: one alone cannot."""


def one_share(setting: int | None, total: int) -> int:
    """Return what one owner may have, by a setting of which None means a part of the total; at least one unit."""
    return max(total // SHARES, 1) if setting is None else setting


class Shares(Generic[OwnerT]):
    """Units of one thing, such as bytes of wills or lanes of a shard, and who has taken them.

    Both bounds are checked and counted in one call, so that total and shares cannot come apart. Owners that
    have nothing take no memory.

    Args:
        total: units that all owners together may have.
        share: units that one owner may have; at most ``total``.
    """

    __slots__ = ("_taken", "share", "total", "used")

    def __init__(self, total: int, share: int) -> None:
        self.total = total
        self.share = min(share, total)
        self.used = 0
        self._taken: dict[OwnerT, int] = {}

    def fits(self, owner: OwnerT, units: int = 1) -> bool:
        """Return whether the owner may have so many units more."""
        return self.used + units <= self.total and self._taken.get(owner, 0) + units <= self.share

    def is_own_share_full(self, owner: OwnerT, units: int = 1) -> bool:
        """Return whether it is the owner's own share that has no room for so many units, and not the total."""
        return self._taken.get(owner, 0) + units > self.share

    def take(self, owner: OwnerT, units: int = 1) -> bool:
        """Take units for an owner if both bounds allow it; return whether they did."""
        if not self.fits(owner, units):
            return False
        self.hold(owner, units)
        return True

    def hold(self, owner: OwnerT, units: int = 1) -> None:
        """Count units that the owner has whatever the bounds say, such as those that a restart found."""
        self.used += units
        self._taken[owner] = self._taken.get(owner, 0) + units

    def free(self, owner: OwnerT, units: int = 1) -> None:
        """Give units back."""
        left = self._taken[owner] - units
        assert left >= 0, f"{owner} frees {units} units more than it took"
        self.used -= units
        if left:
            self._taken[owner] = left
        else:
            del self._taken[owner]

    def taken(self, owner: OwnerT) -> int:
        """Return the units that the owner has."""
        return self._taken.get(owner, 0)

    def heaviest(self) -> OwnerT | None:
        """Return the owner that has most: it makes room first, with its own. Takes time for each owner."""
        return max(self._taken, key=self._taken.__getitem__, default=None)
