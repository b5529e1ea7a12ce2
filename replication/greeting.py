"""Rules for a HELLO and a LANE_OPEN before a hub relies on them."""

from __future__ import annotations

from weft.protocols.chunk import LaneFlag
from weft.protocols.errors import Corrupt, UnsupportedVersion
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.link import KNOWN_LANE_FLAGS, Hello, LaneOpen

SOFTWARE_CHARACTERS_MAX = 256


def check_hello(hello: Hello) -> None:
    """Check everything in a HELLO of this protocol version that a hub relies on.

    Raises:
        Corrupt: a name that cannot be; the sentence says which.
    """
    _check_names(("tenant", hello.tenant), ("edge", hello.edge))
    if len(hello.software) > SOFTWARE_CHARACTERS_MAX:
        raise Corrupt(f"a software name of {len(hello.software)} characters")


def check_opening(opening: LaneOpen) -> None:
    """Check the names and flags of a LANE_OPEN.

    Raises:
        UnsupportedVersion: it has flags of a later release.
        Corrupt: a name or a flag that cannot be; the sentence says which.
    """
    _check_names(("tenant", opening.tenant), ("edge", opening.edge), ("stream", opening.stream))
    unknown = opening.flags & ~int(KNOWN_LANE_FLAGS)
    if unknown:
        raise UnsupportedVersion(f"lane flags {unknown:#x} of a later release")
    if opening.flags & LaneFlag.RELAY and opening.epoch:
        raise Corrupt(f"a relay claims no epoch, this one claims {opening.epoch}")


def _check_names(*names: tuple[str, str]) -> None:
    for what, name in names:
        if not valid_name(name):
            raise Corrupt(f"{what} name {name[:80]!r}: expected {NAME_RULE}")
