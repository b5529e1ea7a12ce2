"""The rate of one tenant at one hub process: two buckets, of bytes and of records. Monotonic nanoseconds.

A bucket is one number: the time at which everything that came will have been allowed. What comes moves it on by its
cost. It stays at most a second behind the present, so that a tenant that was idle may send a second's quota at once.
"""

from __future__ import annotations

SECOND = 1_000_000_000
BURST = SECOND
"""Time whose quota may come at once."""
WAIT_MAX = 3600 * SECOND
"""Longest time that a bucket is ahead: what comes beyond it no longer counts."""


class Bucket:
    """One bound of a tenant.

    Args:
        per_second: units of the whole tenant; None for no bound.
        share: part of them that this process may let in.
    """

    def __init__(self, per_second: int | None, share: float, now: int) -> None:
        self._rate = _rate(per_second, share)
        self._free_at = now - BURST

    @property
    def rate(self) -> float | None:
        """Return the units a second that this process lets in; None for no bound."""
        return self._rate

    def set(self, per_second: int | None, share: float, now: int) -> None:
        """Go on with another rate. What came before and is not allowed yet is allowed sooner or later by it."""
        before, self._rate = self._rate, _rate(per_second, share)
        if before is None or self._rate is None:
            self._free_at = now - BURST
        elif self._free_at > now:
            self._free_at = now + min(int((self._free_at - now) * before / self._rate), WAIT_MAX)

    def take(self, units: int, now: int) -> None:
        """Count units that came."""
        if self._rate is not None:
            at = max(self._free_at, now - BURST) + int(units * SECOND / self._rate)
            self._free_at = min(at, now + WAIT_MAX)

    def wait(self, now: int) -> int:
        """Return the time until all that came is allowed, ns; 0 if it is now."""
        return max(0, self._free_at - now) if self._rate is not None else 0


class TenantRate:
    """Both bounds of a tenant."""

    def __init__(self, now: int) -> None:
        self.bytes = Bucket(None, 1.0, now)
        self.records = Bucket(None, 1.0, now)

    def set(self, bytes_per_second: int | None, records_per_second: int | None, share: float, now: int) -> None:
        """Go on with other quotas, or another share of them."""
        self.bytes.set(bytes_per_second, share, now)
        self.records.set(records_per_second, share, now)

    @property
    def is_bound(self) -> bool:
        """Return whether there is a bound."""
        return self.bytes.rate is not None or self.records.rate is not None

    def take(self, size: int, records: int, now: int) -> None:
        """Count what came."""
        self.bytes.take(size, now)
        self.records.take(records, now)

    def wait(self, now: int) -> int:
        """Return the time until the tenant may send again, ns."""
        return max(self.bytes.wait(now), self.records.wait(now))

    def link_bytes(self, links: int, record_bytes: float) -> int:
        """Return the bytes a second that each of some links can expect, at least 1; 0 without a bound.

        Args:
            record_bytes: mean size of the link's records.
        """
        rates = [self.bytes.rate] if self.bytes.rate is not None else []
        rates += [self.records.rate * max(1.0, record_bytes)] if self.records.rate is not None else []
        return max(1, int(min(rates) / max(1, links))) if rates else 0


def _rate(per_second: int | None, share: float) -> float | None:
    return None if per_second is None else max(per_second * share, 1.0)
