"""Bounds with a name: owners, their shares of a total and their rates, and what is refused beyond them."""

from __future__ import annotations

import enum
import json
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from enum import StrEnum
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Generic, NamedTuple, TypeVar

# Owners: the users, addresses, edges, tenants and tokens that are charged with costs.


class OwnerKind(enum.StrEnum):
    """The kind of an owner's identity."""

    USER = "user"
    ADDRESS = "address"
    EDGE = "edge"
    TENANT = "tenant"
    TOKEN = "token"  # noqa: S105 - a word, no secret


class Owner(NamedTuple):
    """An identity that is charged with costs. The node's own work has no owner."""

    kind: OwnerKind
    name: str
    """Name of a user or tenant, ``TENANT/EDGE``, an address (for IPv6 its /64), or the public part of a token."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


LOCAL = "localhost"
"""Name of the owner for clients of this machine without a user."""


def user_or_address(user: str | None, address: str) -> Owner:
    """Return the owner of a connection: its user, or without a login its address.

    Args:
        address: empty for clients of this machine.
    """
    return Owner(OwnerKind.ADDRESS, address or LOCAL) if user is None else Owner(OwnerKind.USER, user)


def address_owner(host: str) -> Owner:
    """Return the owner of a connection by its peer's address: for IPv6 the /64, the usual prefix of one customer."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return Owner(OwnerKind.ADDRESS, host)
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    name = str(ip_network((address, 64), strict=False)) if isinstance(address, IPv6Address) else str(address)
    return Owner(OwnerKind.ADDRESS, name)


# A total that many owners share, with a bound for each owner.

OwnerT = TypeVar("OwnerT", bound=Hashable)
USER_SHARE = "limits.user_share"
"""Setting of an edge node: the part of each total that one user may have, or one address where clients have no user
name. One user alone cannot take a total."""


# One share for all totals (``limits.user_share``): a share for each total was 22 settings that no one set apart.
class Quota(NamedTuple):
    """Bound on one thing that owners share: what all of them may have together, and what one of them may have."""

    setting: str
    """Setting of the total as an operator writes it, such as ``limits.wills``."""
    total: int
    """Units that all owners together may have."""
    share: int
    """Units that one owner may have."""
    what: str
    """The thing, for the log, such as ``wills``."""

    @classmethod
    def of(cls, setting: str, total: int, user_share: float, what: str) -> Quota:
        """Return the quota of a total of which one owner may have a part.

        Args:
            user_share: value of ``limits.user_share``, more than 0 and at most 1. A share is whole units, at least one.
        """
        # In whole millionths, as a configuration can say: 0.29 * 100 is a little less than 29.
        return cls(setting, total, max(total * round(user_share * 1_000_000) // 1_000_000, 1), what)

    def bound(self, *, is_share: bool) -> str:
        """Return the name of a reached bound, for metrics and the log: the owner's share, or else the total."""
        return f"{USER_SHARE} of {self.setting}" if is_share else self.setting

    def raised(self, *, is_share: bool) -> str:
        """Return the settings of which an operator raises one, so that an owner gets more."""
        return f"{self.setting} or {USER_SHARE}" if is_share else self.setting


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

    def room(self, owner: OwnerT) -> int:
        """Return the number of further units that the owner may take."""
        return min(self.total - self.used, self.share - self._taken.get(owner, 0))

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

    What an owner holds beyond its share counts for that owner alone: of it, its tenant's share has at most the owner's,
    and of a tenant the total at most the tenant's. So an owner waits for no room that another one holds beyond its own.

    Args:
        total: units that all together may have.
        of_tenant: units that the owners of one tenant may have together.
        share: units that one owner may have.
    """

    __slots__ = ("_of_all", "_of_owners", "_of_tenants")

    def __init__(self, total: int, of_tenant: int, share: int) -> None:
        self._of_owners: Shares[tuple[Hashable, OwnerT]] = Shares(sys.maxsize, min(share, total))
        self._of_tenants: Shares[Hashable] = Shares(sys.maxsize, min(of_tenant, total))
        self._of_all: Shares[None] = Shares(total, total)

    @property
    def used(self) -> int:
        """Return the units that all have together."""
        return self._of_owners.used

    def fits(self, tenant: Hashable, owner: OwnerT, units: int = 1) -> bool:
        """Return whether an owner of a tenant may take this many more units."""
        return self.fits_tenant(tenant, units) and self._of_owners.fits((tenant, owner), units)

    def fits_tenant(self, tenant: Hashable, units: int = 1) -> bool:
        """Return whether some owner of a tenant, one that has none, may take this many units."""
        return self._of_all.fits(None, units) and self._of_tenants.fits(tenant, units)

    def take(self, tenant: Hashable, owner: OwnerT, units: int = 1) -> bool:
        """Take units for an owner of a tenant if all bounds allow it; return whether they did."""
        if not self.fits(tenant, owner, units):
            return False
        self.hold(tenant, owner, units)
        return True

    def hold(self, tenant: Hashable, owner: OwnerT, units: int = 1) -> None:
        """Count units that the owner has regardless of the bounds."""
        within = _within_share(self._of_owners, (tenant, owner), units)
        _within_share(self._of_all, None, _within_share(self._of_tenants, tenant, within))

    def free(self, tenant: Hashable, owner: OwnerT, units: int = 1) -> None:
        """Return an owner's units."""
        self.hold(tenant, owner, -units)


def _within_share(shares: Shares[OwnerT], owner: OwnerT, units: int) -> int:
    """Count units of an owner, or fewer than nothing of them, and return how many more of its share it has."""
    before = min(shares.taken(owner), shares.share)
    if units > 0:
        shares.hold(owner, units)
    elif units < 0:
        shares.free(owner, -units)
    return min(shares.taken(owner), shares.share) - before


# Rates of owners: token buckets in bounded memory.

RATED_OWNERS_MAX = 65_536
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

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float], owners_max: int = RATED_OWNERS_MAX
    ) -> None:
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


# Structured log lines about refusals and failed logins, for programs that watch logs (docs/how-to/see-who-did-
# what.md).
#
# A flood of refusals must not become a flood of lines: all are counted, and some are written.

event_logger = logging.getLogger("weft.events")

LINES_MAX, INTERVAL_S = 60, 60.0
"""Maximum number of lines in an interval; a line has some 300 bytes, so a flood writes 26 MB a day."""
AGAIN_S = 60.0
"""Shortest time between two lines about the same thing."""
KEYS_MAX = 1024
"""Maximum number of things that are remembered; the one that was longest quiet is forgotten first."""
TEXT_MAX = 200


class SecurityEvent(StrEnum):
    """The kind of an event. The words are for programs: none changes."""

    LOGIN_FAILED = "login_failed"
    """A password, token or certificate that opens nothing, or none at all."""
    ACCESS_REFUSED = "access_refused"
    """A login in force that does not open what was asked for."""
    SHARE_USED_UP = "share_used_up"
    """An owner that asked for more than its share of a bound."""


class Severity(StrEnum):
    """Urgency of an event."""

    NOTICE = "notice"
    WARNING = "warning"


_LEVELS = {Severity.NOTICE: logging.INFO, Severity.WARNING: logging.WARNING}


class _Repetition:
    __slots__ = ("next_at", "unsaid")

    def __init__(self) -> None:
        self.next_at = 0.0
        self.unsaid = 0


class Events:
    """The events of one process. Belongs to the event loop's thread.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.counts = dict.fromkeys(SecurityEvent, 0)
        """Number of events by kind, also of those without a line."""
        self._known: OrderedDict[tuple[SecurityEvent, Owner, str], _Repetition] = OrderedDict()
        self._began, self._lines, self._left_out = clock(), 0, 0

    def note(self, event: SecurityEvent, severity: Severity, owner: Owner, reason: str, *, on: str = "") -> None:
        """Count an event, and write its line if the bounds allow it.

        Args:
            owner: the user, token or address that is the cause, as far as it is known.
            reason: one sentence without secrets.
            on: the request, listener or setting.
        """
        self.counts[event] += 1
        now, key = self._clock(), (event, owner, reason[:TEXT_MAX])
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Repetition()
            if len(self._known) > KEYS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        known.unsaid += 1
        if now - self._began >= INTERVAL_S:
            self._began, self._lines = now, 0
        if now < known.next_at or self._lines >= LINES_MAX:
            self._left_out += 1
            return
        self._lines += 1
        members = {
            "event": event,
            "severity": severity,
            "owner": str(owner)[:TEXT_MAX],
            "on": on[:TEXT_MAX],
            "reason": reason[:TEXT_MAX],
            "times": known.unsaid,
            "left_out": self._left_out,
        }
        known.next_at, known.unsaid, self._left_out = now + AGAIN_S, 0, 0
        event_logger.log(_LEVELS[severity], "%s", json.dumps(members))


# Refusals by bound and owner, for metrics and the log.

logger = logging.getLogger(__name__)

REFUSED_OWNERS_MAX = 100
"""Maximum number of owners named for one bound; the others are counted together. A flood of names must not become a
flood of metrics."""
LINE_INTERVAL_S = 10.0
"""Minimum interval between two log lines about one bound."""


class RefusalCount(NamedTuple):
    """Number of refusals of one owner by one bound."""

    bound: str
    owner: Owner | None
    """None for all owners beyond ``REFUSED_OWNERS_MAX`` together."""
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
        self._unlogged: dict[str, int] = {}
        self._next_line: dict[str, float] = {}

    def note(self, bound: str, owner: Owner, advice: str) -> None:
        """Count a refusal and log it, unless a line about the same bound was logged just before.

        Args:
            bound: name of the bound, as an operator writes it, such as ``limits.links`` (see ``Quota.bound``).
            advice: the refused thing and the operator's remedy, one sentence.
        """
        owners = self._counts.setdefault(bound, {})
        key = owner if owner in owners or len(owners) < REFUSED_OWNERS_MAX else None
        owners[key] = owners.get(key, 0) + 1
        now = self.clock()
        if now < self._next_line.get(bound, now):
            self._unlogged[bound] = self._unlogged.get(bound, 0) + 1
            return
        self._next_line[bound] = now + LINE_INTERVAL_S
        unsaid = self._unlogged.pop(bound, 0)
        more = f" ({unsaid:,} more refusals by {bound} since the last such line)" if unsaid else ""
        logger.warning("%s reached its share, %s: %s%s", owner, bound, advice, more)
        self.events.note(SecurityEvent.SHARE_USED_UP, Severity.NOTICE, owner, advice, on=bound)

    def __iter__(self) -> Iterator[RefusalCount]:
        for bound, owners in self._counts.items():
            for owner, count in owners.items():
                yield RefusalCount(bound, owner, count)


# A bound with a name: shares whose refusals are counted.

HEAVIEST_S = 1.0
"""Time for which the heaviest owner is remembered: finding it takes time for each owner."""


class Bound(Shares[Owner]):
    """Units of one thing that owners share.

    Args:
        quota: the total and the share, with their names.
        refusals: counter of the refusals.
    """

    __slots__ = ("_heaviest", "_look_at", "_refusals", "quota")

    def __init__(self, quota: Quota, refusals: Refusals) -> None:
        super().__init__(quota.total, quota.share)
        self.quota = quota
        self._refusals = refusals
        self._heaviest: Owner | None = None
        self._look_at = float("-inf")

    def refuse(self, owner: Owner, units: int = 1) -> None:
        """Count a refusal of units to an owner."""
        quota, is_share = self.quota, self.is_own_share_full(owner, units)
        advice = f"no room for more {quota.what}; raise {quota.raised(is_share=is_share)} if it is to have more"
        self._refusals.note(quota.bound(is_share=is_share), owner, advice)

    def heavier(self, owner: Owner) -> Owner | None:
        """Return the owner with the most units, as of about a second ago; None unless it is this one or has more."""
        now = self._refusals.clock()
        if now >= self._look_at:
            self._look_at = now + HEAVIEST_S
            self._heaviest = self.heaviest()
        found = self._heaviest
        return found if found is not None and (found == owner or self.taken(found) > self.taken(owner)) else None
