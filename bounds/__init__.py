"""The vocabulary of bounds: owners, their shares of what is shared, and their turns.

- An *owner* is whom a cost is charged to: a device's user, else its address; an edge, a tenant, a token.
- A *cost* is what the server has to do or keep, never the bytes that came on the wire.
- A *share* is how much of something shared one owner may have; the total is a bound of its own.
- A *turn budget* is what one owner may make the server do before others are served; what is left waits its turn.
- A *refusal* is what happens beyond a share. Metrics name the owners that were refused.

`browsers` tells requests that pages of strangers send through a browser of this machine from its own,
`http_server` bounds the connections of a server that ask nothing, and `cbor` what a payload may take to decode.
"""

from weft.bounds.bound import Bound
from weft.bounds.crowd import CROWD, Crowd
from weft.bounds.owner import LOCAL, Owner, OwnerKind, address_owner, user_or_address
from weft.bounds.rates import Rates
from weft.bounds.refusals import Refusals
from weft.bounds.rounds import Rounds
from weft.bounds.shares import Shares, one_share
from weft.bounds.turn_budget import TurnBudget

__all__ = [
    "CROWD",
    "LOCAL",
    "Bound",
    "Crowd",
    "Owner",
    "OwnerKind",
    "Rates",
    "Refusals",
    "Rounds",
    "Shares",
    "TurnBudget",
    "address_owner",
    "one_share",
    "user_or_address",
]
