"""Memory of the messages that were taken last, to know those that a broker sends again without saying so.

A broker says that it sends a message again (DUP, redelivered) as long as it remembers that it has sent it. One that was
killed has lost what it did not write: it may send again what was acknowledged, as if it were new.
"""

from __future__ import annotations

from collections import Counter, deque

RECENT_MAX = 10_000
"""Messages remembered: more than any broker loses that writes its state every few seconds. Some 1 MB when full."""
NEW_MAX = 200
"""New messages in a row after which none of the earlier ones is expected any more: brokers send them in order."""


class Recent:
    """Digests of the last messages of one source, and of those that may come again on a new connection."""

    def __init__(self) -> None:
        self._digests: deque[int] = deque(maxlen=RECENT_MAX)
        self._expected: Counter[int] = Counter()
        self._new_in_a_row = 0

    def reconnected(self) -> None:
        """Expect that each message that was taken before may come once more."""
        self._expected = Counter(self._digests)
        self._new_in_a_row = 0

    def is_again(self, key: bytes, payload: bytes) -> bool:
        """Take note of a message. Return whether it may have come before."""
        digest = hash((key, payload))
        if self._expected:
            if self._expected[digest] > 0:
                self._expected[digest] -= 1
                self._new_in_a_row = 0
                return True
            self._new_in_a_row += 1
            if self._new_in_a_row >= NEW_MAX:
                self._expected.clear()
        self._digests.append(digest)
        return False
