"""Repetitions in a log: a line is written the first time, and then at growing intervals with a count."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

FIRST_INTERVAL_S = 60.0
"""Wait before the second line. A link that is tried every 30 s would write 2,880 lines a day without it."""
INTERVAL_S_MAX = 3600.0
"""Longest wait: the last hour of a log shows that the trouble goes on."""
KEYS_MAX = 1024
"""Maximum number of keys remembered. The key asked about longest ago is forgotten first; its next line is then
written."""


@dataclass(slots=True)
class _Said:
    next_at: float
    interval_s: float
    left_out: int = 0


class Repeats:
    """A filter of repeated lines. Keys are texts that are equal for lines of the same meaning.

    ``now`` is monotonic seconds throughout.
    """

    def __init__(
        self, first_s: float = FIRST_INTERVAL_S, longest_s: float = INTERVAL_S_MAX, keys_max: int = KEYS_MAX
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._keys_max = keys_max
        self._said: OrderedDict[str, _Said] = OrderedDict()

    def say(self, key: str, now: float, *, always: bool = False) -> int | None:
        """Return the number of repetitions left out since the last line; None when this one is left out too.

        Args:
            always: write the line in any case; the intervals grow from here.
        """
        said = self._said.get(key)
        if said is None:
            self._said[key] = _Said(now + self._first_s, self._first_s)
            if len(self._said) > self._keys_max:
                self._said.popitem(last=False)
            return 0
        self._said.move_to_end(key)
        if now >= said.next_at + self._longest_s:
            # It has been quiet for so long that this is news, but every repetition is counted.
            said.interval_s = self._first_s / 2
        if now < said.next_at and not always:
            said.left_out += 1
            return None
        left_out, said.left_out = said.left_out, 0
        said.interval_s = min(2 * said.interval_s, self._longest_s)
        said.next_at = now + said.interval_s
        return left_out

    def forget(self, key: str) -> None:
        """Let the next ``say`` of a key be the first, because its trouble is over."""
        self._said.pop(key, None)

    def clear(self) -> None:
        """Forget every key."""
        self._said.clear()


def left_out(count: int) -> str:
    """Return the part of a line about left-out repetitions; empty for none."""
    return f"; {count:,} more like this since the last line" if count else ""
