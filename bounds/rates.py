"""Rates of owners: token buckets in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

OwnerT = TypeVar("OwnerT", bound=Hashable)
OWNERS_MAX = 65_536
"""Maximum number of owners with a stored rate; the least recently seen one is dropped first. A dropped owner has a
whole burst again."""


class Rates(Generic[OwnerT]):
    """A token bucket for each owner.

    Args:
        rate: units a second that one owner may use in the long run.
        burst: units that one owner may use at once.
        clock: monotonic seconds.
    """

    __slots__ = ("_burst", "_clock", "_owners_max", "_rate", "_seen")

    def __init__(self, rate: float, burst: float, clock: Callable[[], float], owners_max: int = OWNERS_MAX) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._owners_max = owners_max
        self._seen: OrderedDict[OwnerT, tuple[float, float]] = OrderedDict()

    def use(self, owner: OwnerT, units: float = 1.0) -> float:
        """Use units if the owner has them. Return 0.0, else the seconds until it will have them."""
        left = self._left(owner)
        wait = 0.0 if left >= units else (units - left) / self._rate
        self._keep(owner, left if wait else left - units)
        return wait

    def charge(self, owner: OwnerT, units: float) -> None:
        """Charge units that were used already, which may leave the owner in debt."""
        self._keep(owner, self._left(owner) - units)

    def debt_s(self, owner: OwnerT) -> float:
        """Return the seconds until the owner is out of debt."""
        return max(0.0, -self._left(owner) / self._rate) if owner in self._seen else 0.0

    def _left(self, owner: OwnerT) -> float:
        now = self._clock()
        left, at = self._seen.get(owner, (self._burst, now))
        return min(self._burst, left + (now - at) * self._rate)

    def _keep(self, owner: OwnerT, left: float) -> None:
        self._seen.pop(owner, None)
        self._seen[owner] = (left, self._clock())
        if len(self._seen) > self._owners_max:
            self._seen.popitem(last=False)
