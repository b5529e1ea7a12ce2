"""Values that a process remembers of messages that are over, within a bound that tenants share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class TenantMemory(Generic[KeyT, ValueT]):
    """Values by tenant and key, of which each tenant's oldest are forgotten first.

    A tenant alone may have them all. One that has less than an equal part loses none to others.

    Args:
        total: maximum number of values.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._count = 0
        self._of: dict[str, OrderedDict[KeyT, ValueT]] = {}
        self._largest = ""
        """A tenant with at least an equal part, as of the last value that was too many: to find one takes a look at
        each."""

    def __len__(self) -> int:
        """Return the number of values."""
        return self._count

    def get(self, tenant: str, key: KeyT) -> ValueT | None:
        """Return a value; None if it is not remembered."""
        own = self._of.get(tenant)
        return None if own is None else own.get(key)

    def put(self, tenant: str, key: KeyT, value: ValueT) -> None:
        """Remember a value. One that is known keeps its age."""
        own = self._of.setdefault(tenant, OrderedDict())
        before = len(own)
        own[key] = value
        self._count += len(own) - before
        if self._count > self._total:
            if len(self._of.get(self._largest, ())) * len(self._of) < self._total:
                self._largest = max(self._of, key=lambda each: len(self._of[each]))
            self.forget(self._largest, next(iter(self._of[self._largest])))

    def forget(self, tenant: str, key: KeyT) -> None:
        """Forget a value."""
        own = self._of.get(tenant)
        if own is not None and own.pop(key, None) is not None:
            self._count -= 1
            if not own:
                del self._of[tenant]

    def newest(self, tenant: str) -> Iterator[tuple[KeyT, ValueT]]:
        """Yield a tenant's keys and values, the newest first."""
        own = self._of.get(tenant)
        return iter(()) if own is None else iter(list(reversed(own.items())))
