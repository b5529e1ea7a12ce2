"""A pairing: an edge gets a token by a code that an operator reads out at the hub (docs/reference/formats/link.md)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

PAIR_PATH = "/v1/pair"
BODY_BYTES_MAX = 1024
CODE_CHARACTERS = 12
"""60 bits: too many to guess one while it counts, at the hub's port and beside its hash in the store."""
CODE_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's: no letter is taken for a digit."""
_SPOKEN = str.maketrans({"O": "0", "I": "1", "L": "1", "-": None, " ": None})


class PairRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The body of a request. The edge has made its token by itself: only the hash leaves the machine."""

    code: Annotated[str, Meta(max_length=64)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """Hash of the token."""
    tenant: Annotated[str, Meta(max_length=64)] | None = None
    edge: Annotated[str, Meta(max_length=64)] | None = None
    """The edge for which the asking machine holds itself; None if it does not know yet."""


class PairAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The edge whose links the token opens from now on."""

    tenant: str
    edge: str
    token: str
    """Name of the token."""
    until: str | None
    """Moment at which the token ends; None for no end."""


def code_of(numbers: bytes) -> str:
    """Return the code for as many random bytes as it has characters, in groups of four."""
    letters = "".join(CODE_ALPHABET[each % len(CODE_ALPHABET)] for each in numbers[:CODE_CHARACTERS])
    return "-".join(letters[at : at + 4] for at in range(0, CODE_CHARACTERS, 4))


def spoken(code: str) -> str:
    """Return a code as it is hashed, however a person wrote it: ``k7qf 9xdm 2rpt`` is ``K7QF9XDM2RPT``."""
    return code.upper().translate(_SPOKEN)
