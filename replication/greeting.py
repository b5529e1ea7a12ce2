"""Rules for a HELLO before a hub relies on it."""

from __future__ import annotations

from weft.protocols.errors import Corrupt
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.link import LANES_MAX, Hello
from weft.replication.accounting import RANGES_MAX, checked_ranges

SOFTWARE_CHARACTERS_MAX = 256


def check_hello(hello: Hello) -> None:
    """Check everything in a HELLO of this protocol version that a hub relies on.

    Raises:
        Corrupt: a name, a number or a range that cannot be; the sentence says which.
    """
    names = [("tenant", hello.tenant), ("edge", hello.edge), *(("stream", lane.stream) for lane in hello.lanes)]
    for what, name in names:
        if not valid_name(name):
            raise Corrupt(f"{what} name {name[:80]!r}: expected {NAME_RULE}")
    numbers = {lane.lane for lane in hello.lanes}
    if len(hello.lanes) > LANES_MAX or any(not 0 <= number < LANES_MAX for number in numbers):
        raise Corrupt(f"lane numbers must be below {LANES_MAX}")
    if len(numbers) < len(hello.lanes) or len({lane.stream for lane in hello.lanes}) < len(hello.lanes):
        raise Corrupt("a lane number or a stream is offered twice")
    if len(hello.software) > SOFTWARE_CHARACTERS_MAX:
        raise Corrupt(f"a software name of {len(hello.software)} characters")
    left = RANGES_MAX
    for lane in hello.lanes:
        left -= len(checked_ranges(lane.ranges, left))
