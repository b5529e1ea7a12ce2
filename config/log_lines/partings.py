"""Log lines about clients that were closed: what many clients cause at once, or one again and again, is joined."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from weft.config.log_lines.repeats import Repeats, left_out

KEYED_CHARACTERS_MAX = 300
"""Beginning of a reason that tells it from others; clients can make a reason as long as a frame."""
_OF_ONE_ATTEMPT = re.compile(r"""b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|0x[0-9a-f]+|[0-9]+""")
"""Parts of a reason that differ from attempt to attempt, and that a client may choose."""

_NOT_STORED = re.compile(r"(what (it sent|was published|was declared) could not be stored|released)\b")


class Partings:
    """Filter of such lines: the first is written, and then one after 1, 2, 4 minutes with a count.

    A device that is refused comes back each second. Fifty of them on a full disk would write megabytes in an hour,
    perhaps on the same disk; and addresses that need no password to fail could fill it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with nothing said.

        Args:
            clock: the loop's, in seconds.
        """
        self._clock = clock
        self._not_stored = Repeats()
        self._strangers = Repeats()

    def closed(
        self, log: logging.Logger, who: str, reason: str, level: int = logging.WARNING, stranger_at: str | None = None
    ) -> None:
        """Say why a client was closed; of warnings, joins those that would say the same.

        What could not be stored is one line for all clients that meet the same; a client that was not let in, one for
        all of its address with such a reason.

        Args:
            who: beginning of the line, with the client's name.
            stranger_at: address that costs are charged to, of a client that was not let in.
        """
        count: int | None = 0
        kind = f"{log.name} {_OF_ONE_ATTEMPT.sub('', reason[:KEYED_CHARACTERS_MAX])}"
        if level < logging.WARNING:
            pass
        elif _NOT_STORED.match(reason):
            count = self._not_stored.say(kind, self._clock())
        elif stranger_at is not None:
            count = self._strangers.say(f"{stranger_at} {kind}", self._clock())
        if count is not None:
            log.log(level, "%s: %s%s", who, reason, left_out(count))
