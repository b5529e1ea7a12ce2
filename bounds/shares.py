"""A total that many owners share, with a bound for each owner."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

OwnerT = TypeVar("OwnerT", bound=Hashable)
SHARES = 4
"""Number of owners whose shares make up a total by default: one owner alone cannot take it all."""


def one_share(setting: int | None, total: int) -> int:
    """Return one owner's share: the setting, or if it is None a part of the total; at least one unit."""
    return max(total // SHARES, 1) if setting is None else setting


class Shares(Generic[OwnerT]):
    """Units of one thing, such as bytes of wills or lanes of a shard, and the number that each owner has taken.

    Both bounds are checked and counted in one call, so that total and shares always agree. Owners without units take no
    memory.

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
        """Return whether the owner may take this many more units."""
        return self.used + units <= self.total and self._taken.get(owner, 0) + units <= self.share

    def is_own_share_full(self, owner: OwnerT, units: int = 1) -> bool:
        """Return whether the owner's own share, not the total, has no room for this many units."""
        return self._taken.get(owner, 0) + units > self.share

    def take(self, owner: OwnerT, units: int = 1) -> bool:
        """Take units for an owner if both bounds allow it; return whether they did."""
        if not self.fits(owner, units):
            return False
        self.hold(owner, units)
        return True

    def hold(self, owner: OwnerT, units: int = 1) -> None:
        """Count units that the owner has regardless of the bounds, such as those found at a restart."""
        self.used += units
        self._taken[owner] = self._taken.get(owner, 0) + units

    def free(self, owner: OwnerT, units: int = 1) -> None:
        """Return an owner's units."""
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
        """Return the owner with the most units, which makes room first. Takes time for each owner."""
        return max(self._taken, key=self._taken.__getitem__, default=None)


class NestedShares(Generic[OwnerT]):
    """Units of one thing that tenants share, and within each tenant its owners, such as its tokens: a tenant with many
    tokens has no more than a tenant's share.

    Args:
        total: units that all together may have.
        of_tenant: units that the owners of one tenant may have together.
        share: units that one owner may have.
    """

    __slots__ = ("_of_owners", "_of_tenants")

    def __init__(self, total: int, of_tenant: int, share: int) -> None:
        self._of_tenants: Shares[Hashable] = Shares(total, of_tenant)
        self._of_owners: Shares[tuple[Hashable, OwnerT]] = Shares(total, share)

    @property
    def used(self) -> int:
        """Return the units that all have together."""
        return self._of_tenants.used

    def fits(self, tenant: Hashable, owner: OwnerT, units: int = 1) -> bool:
        """Return whether an owner of a tenant may take this many more units."""
        return self._of_tenants.fits(tenant, units) and self._of_owners.fits((tenant, owner), units)

    def take(self, tenant: Hashable, owner: OwnerT, units: int = 1) -> bool:
        """Take units for an owner of a tenant if all bounds allow it; return whether they did."""
        if not self.fits(tenant, owner, units):
            return False
        self.hold(tenant, owner, units)
        return True

    def hold(self, tenant: Hashable, owner: OwnerT, units: int = 1) -> None:
        """Count units that the owner has regardless of the bounds."""
        self._of_tenants.hold(tenant, units)
        self._of_owners.hold((tenant, owner), units)

    def free(self, tenant: Hashable, owner: OwnerT, units: int = 1) -> None:
        """Return an owner's units."""
        self._of_tenants.free(tenant, units)
        self._of_owners.free((tenant, owner), units)
