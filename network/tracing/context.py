"""Trace contexts by W3C Trace Context, level 1 (https://www.w3.org/TR/trace-context/)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from weft.protocols.columns import HeaderValue

TRACEPARENT: Final = "traceparent"
"""Name of the header in HTTP, of the user property in MQTT 5.0, and of the application property in AMQP."""
TRACESTATE: Final = "tracestate"
TRACESTATE_CHARACTERS_MAX = 512
"""Longest value that is kept: section 3.3.1.5 asks for at least that much."""
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_CHARACTERS_MAX = 256
"""Longest value that is parsed; later versions may append fields."""
_SAMPLED = 1


class TraceContext(NamedTuple):
    """Identity of a span, as others name it as their parent."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""
    is_sampled: bool = True

    def __str__(self) -> str:
        """Return the value of ``traceparent``."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"


def parse(value: HeaderValue) -> TraceContext | None:
    """Return the context in a value of ``traceparent``; None if it is not valid, and must be ignored (section 4.3).

    A later version counts as far as version 00 goes (section 3.2.4).
    """
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if not isinstance(value, str) or len(value) > _CHARACTERS_MAX:
        return None
    match = _FORM.fullmatch(value.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(match[4], 16) & _SAMPLED))


def found_in(headers: Iterable[tuple[str, HeaderValue]]) -> TraceContext | None:
    """Return the context in the headers of a record; None without a valid one. Of several the first counts."""
    for name, value in headers:
        if name == TRACEPARENT:
            return parse(value)
    return None
