"""The vocabulary of bounds: owners, their shares of a total, and their turns.

- An *owner* is charged with costs: a device's user, else its address; an edge, a tenant, a token.
- A *cost* is the server's work or memory, never the bytes on the wire.
- A *share* is the part of a total that one owner may have; the total is a bound of its own. Where an owner is a token
  or a link, its tenant has a share, too.
- A *turn budget* is the work that the server does for one owner before it serves others; the rest waits for its next
  turn.
- A *refusal* answers a request beyond a share. Metrics name the refused owners.
- An *event* is a structured log line about a refusal or a failed login.

No library of limiters: those for asyncio count calls in time, for a process and not for an owner.

`browsers` distinguishes requests of foreign pages in a browser from others, `cbor` bounds the cost of decoding a
payload, and `background` ends a task with its owner.
"""

from weft.bounds.bound import (
    LOCAL,
    Bound,
    Events,
    NestedShares,
    Owner,
    OwnerKind,
    Quota,
    Rates,
    Refusals,
    SecurityEvent,
    Severity,
    Shares,
    address_owner,
    user_or_address,
)
from weft.bounds.scheduling import FAN_OUT_MAX, FanOutCap, RoundRobin, TurnBudget

__all__ = [
    "FAN_OUT_MAX",
    "LOCAL",
    "Bound",
    "Events",
    "FanOutCap",
    "NestedShares",
    "Owner",
    "OwnerKind",
    "Quota",
    "Rates",
    "Refusals",
    "RoundRobin",
    "SecurityEvent",
    "Severity",
    "Shares",
    "TurnBudget",
    "address_owner",
    "user_or_address",
]
