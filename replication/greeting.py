"""Rules for a HELLO and a LANE_OPEN before a hub relies on them."""

from __future__ import annotations

from collections.abc import Set

from weft.protocols.chunk import LaneFlag
from weft.protocols.errors import Corrupt, UnsupportedVersion
from weft.protocols.lane import NAME_RULE, Lane, valid_name
from weft.protocols.link import KNOWN_LANE_FLAGS, LANES_MAX, PROTOCOL_VERSION, Hello, LaneOpen, RefuseCode
from weft.protocols.topics import InvalidTopic, check_pattern

SOFTWARE_CHARACTERS_MAX = 256
TOPICS_BYTES_MAX = 64 << 10
"""Longest topic patterns of one lane, together."""
REASON_CHARACTERS_MAX = 300
"""Longest part of a refusal about a pattern, which it quotes."""


def check_hello(hello: Hello) -> None:
    """Check every part of a HELLO that a hub relies on.

    Raises:
        UnsupportedVersion: it is of another protocol version.
        Corrupt: a name is not valid; the message names it.
    """
    if hello.version != PROTOCOL_VERSION:
        raise UnsupportedVersion(
            f"it speaks link protocol {hello.version}, this hub {PROTOCOL_VERSION}: upgrade the older one"
        )
    _check_names(("tenant", hello.tenant), ("edge", hello.edge))
    if len(hello.software) > SOFTWARE_CHARACTERS_MAX:
        raise Corrupt(f"a software name of {len(hello.software)} characters")


def check_opening(opening: LaneOpen) -> None:
    """Check the names, flags and topic patterns of a LANE_OPEN.

    Raises:
        UnsupportedVersion: it has flags of a later release.
        Corrupt: a name, a flag or a pattern is not valid; the message names it.
    """
    _check_names(("tenant", opening.tenant), ("edge", opening.edge), ("stream", opening.stream))
    unknown = opening.flags & ~int(KNOWN_LANE_FLAGS)
    if unknown:
        raise UnsupportedVersion(f"lane flags {unknown:#x} of a later release")
    if opening.flags & LaneFlag.RELAY and opening.epoch:
        raise Corrupt(f"a relay claims no epoch, this one claims {opening.epoch}")
    size = sum(map(len, opening.topics))
    if size > TOPICS_BYTES_MAX:
        raise Corrupt(f"topic patterns of {size} characters for one stream; at most {TOPICS_BYTES_MAX} are possible")
    try:
        for topic in opening.topics:
            check_pattern(topic)
    except InvalidTopic as error:
        raise Corrupt(str(error)[:REASON_CHARACTERS_MAX]) from error


def _check_names(*names: tuple[str, str]) -> None:
    for what, name in names:
        if not valid_name(name):
            raise Corrupt(f"{what} name {name[:80]!r}: expected {NAME_RULE}")


def lane_refusal(opening: LaneOpen, identity: Lane, opened: Set[Lane]) -> tuple[RefuseCode, str] | None:
    """Return the reason to refuse a lane; the link's other lanes are not affected.

    Args:
        opened: the lanes that the link has.
    """
    try:
        check_opening(opening)
    except UnsupportedVersion as error:
        return RefuseCode.VERSION, str(error)
    except Corrupt as error:
        return RefuseCode.BAD_HELLO, str(error)
    if identity in opened:
        return RefuseCode.BAD_HELLO, f"lane {identity} is open already on this link"
    if len(opened) >= LANES_MAX:
        return RefuseCode.OVERLOADED, f"the link has {LANES_MAX} lanes, the most that it may have"
    return None
