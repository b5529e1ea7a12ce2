"""The vocabulary of bounds: owners, their shares of a total, and their turns.

- An *owner* is charged with costs: a device's user, else its address; an edge, a tenant, a token.
- A *cost* is the server's work or memory, never the bytes on the wire.
- A *share* is the part of a total that one owner may have; the total is a bound of its own. Where an owner is a token
  or a link, its tenant has a share, too.
- A *turn budget* is the work that the server does for one owner before it serves others; the rest waits for its next
  turn.
- A *refusal* answers a request beyond a share. Metrics name the refused owners.
- An *event* is a structured log line about a refusal or a failed login.

`browsers` distinguishes requests of foreign pages in a browser from others, `cbor` bounds the cost of decoding a
payload, and `background` ends a task with its owner.
"""

from weft.bounds.bound import Bound
from weft.bounds.crowd import CROWD, Crowd
from weft.bounds.events import Events, SecurityEvent, Severity
from weft.bounds.owner import LOCAL, Owner, OwnerKind, address_owner, user_or_address
from weft.bounds.rates import Rates
from weft.bounds.refusals import Refusals
from weft.bounds.rounds import Rounds
from weft.bounds.shares import NestedShares, Shares, one_share
from weft.bounds.turn_budget import TurnBudget

__all__ = [
    "CROWD",
    "LOCAL",
    "Bound",
    "Crowd",
    "Events",
    "NestedShares",
    "Owner",
    "OwnerKind",
    "Rates",
    "Refusals",
    "Rounds",
    "SecurityEvent",
    "Severity",
    "Shares",
    "TurnBudget",
    "address_owner",
    "one_share",
    "user_or_address",
]
