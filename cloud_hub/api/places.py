"""Places of readers whose answers go on: shares of them for each reader and each tenant."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from weft.bounds import Owner, Refusals
from weft.cloud_hub.api.access import ApiError

BOUND = "limits.response"
"""Setting under which refusals are counted, as for other answers."""


class ReaderPlaces:
    """Belongs to the event loop's thread.

    Args:
        most: readers at once; half of them at most of one tenant, and an eighth of one owner.
        what: what they do, for the refusal: "listen to changes".
    """

    def __init__(self, refusals: Refusals, most: int, what: str) -> None:
        self._refusals, self._most, self._what = refusals, most, what
        self.owners: Counter[Owner] = Counter()
        self._tenants: Counter[str] = Counter()

    @property
    def of_owner(self) -> int:
        """Return the number of places for one owner."""
        return self._most // 8

    @contextlib.contextmanager
    def taken(self, owner: Owner, tenant: str) -> Iterator[None]:
        """Hold a place.

        Raises:
            ApiError: 429: there is none.
        """
        is_full = self.owners.total() >= self._most or self._tenants[tenant] >= self._most // 2
        if is_full or self.owners[owner] >= self.of_owner:
            self._refusals.note(BOUND, owner, f"refused one more answer that goes on: too many {self._what}")
            raise ApiError(429, f"too many {self._what}", "close other pages, or ask now and then", retry_s=30)
        self.owners[owner] += 1
        self._tenants[tenant] += 1
        try:
            yield
        finally:
            # Without zeros, so that names that left are forgotten.
            self.owners = +(self.owners - Counter([owner]))
            self._tenants = +(self._tenants - Counter([tenant]))
