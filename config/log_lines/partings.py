"""Log lines about closed clients: lines that many clients cause at once, or one again and again, are joined."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable

from weft.config.log_lines.repeats import Repeats, left_out

KEYED_CHARACTERS_MAX = 300
"""Length of the beginning that distinguishes a reason from others; clients can make a reason as long as a frame."""
_OF_ONE_ATTEMPT = re.compile(r"""b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|0x[0-9a-f]+|[0-9]+""")
"""Parts of a reason that differ from attempt to attempt, and that a client may choose."""
NAMES_MAX = 8
"""Names in such reasons of one address that have lines of their own: they show which devices of a site have an old
password."""
ADDRESSES_MAX = 1024
"""Addresses whose names are remembered; the one seen longest ago is forgotten first."""

_NOT_STORED = re.compile(r"(what (it sent|was published|was declared) could not be stored|released)\b")


class Partings:
    """Filter of such lines: the first is written, and then one after 1, 2, 4 minutes with a count.

    A device that is refused comes back each second. Fifty of them on a full disk would write megabytes in an hour,
    perhaps on the same disk; and addresses that need no password to fail could fill it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without any line written.

        Args:
            clock: the loop's, in seconds.
        """
        self._clock = clock
        self._not_stored = Repeats()
        self._strangers = Repeats()
        self._names: OrderedDict[str, set[str]] = OrderedDict()
        """Address and kind of reason -> names in it."""

    def closed(
        self, log: logging.Logger, who: str, reason: str, level: int = logging.WARNING, stranger_at: str | None = None
    ) -> None:
        """Log why a client was closed. Warnings with the same text are joined.

        A failure to store is one line for all clients that meet it. A refused client is one line for all of its address
        with such a reason, apart from the first few names in it.

        Args:
            who: beginning of the line, with the client's name.
            stranger_at: address that costs are charged to, of a refused client.
        """
        count: int | None = 0
        kind = f"{log.name} {_OF_ONE_ATTEMPT.sub('', reason[:KEYED_CHARACTERS_MAX])}"
        if level < logging.WARNING:
            pass
        elif _NOT_STORED.match(reason):
            count = self._not_stored.say(kind, self._clock())
        elif stranger_at is not None:
            count = self._strangers.say(self._stranger(f"{stranger_at} {kind}", reason), self._clock())
        if count is not None:
            log.log(level, "%s: %s%s", who, reason, left_out(count))

    def _stranger(self, kind: str, reason: str) -> str:
        """Return the common key of the lines that are joined."""
        name = "".join(part for part in _OF_ONE_ATTEMPT.findall(reason[:KEYED_CHARACTERS_MAX]) if part[0] in "'\"")
        names = self._names.setdefault(kind, set())
        self._names.move_to_end(kind)
        if len(self._names) > ADDRESSES_MAX:
            self._names.popitem(last=False)
        if name not in names and len(names) >= NAMES_MAX:
            return kind
        names.add(name)
        return f"{kind} {name}"
