"""Numbers of origins in one log, and their meanings."""

from __future__ import annotations

from collections.abc import Iterable

from weft.protocols.origin import HASH_BYTES_MAX, ORIGIN_TEXT_MAX, ORIGINS_MAX, Origin
from weft.protocols.segment import encode_body

_OVERHEAD_BYTES = 128
"""Maximum bytes of a commit beside its origins: its mark, the headers of entries."""
ORIGIN_BYTES_MAX = _OVERHEAD_BYTES + 2 * (8 * ORIGIN_TEXT_MAX + HASH_BYTES_MAX + 32)
"""Maximum bytes of an origin in the log."""

_Content = tuple[int, str, str, bytes]


def origin_bytes(origin: Origin) -> int:
    """Return the bytes of an origin in the log: in an entry of its own, and in the footer."""
    return _OVERHEAD_BYTES + 2 * len(encode_body([origin]))


class Origins:
    """The known origins of a log, at most ``ORIGINS_MAX``. A number is never assigned twice. Guarded by the log's
    lock."""

    def __init__(self) -> None:
        self.known: dict[int, Origin] = {}
        self._numbers: dict[_Content, int] = {}
        self._asked: set[int] = set()
        """Numbers that this process has requested."""
        self._last = 0

    def learn(self, origins: Iterable[Origin], last: int = 0) -> None:
        """Add the origins of a segment.

        Args:
            last: highest number in a batch of it, even if unknown.
        """
        for origin in origins:
            self.known[origin.number] = origin
            self._numbers[_content(origin)] = origin.number
        self._last = max(self._last, last, *self.known, 0)

    def knows(self, kind: int, name: str, version: str, hash_: bytes) -> bool:
        """Return whether the origin has a number."""
        return (kind, name, version, hash_) in self._numbers

    def number(self, kind: int, name: str, version: str, hash_: bytes) -> tuple[int, Origin | None]:
        """Return the number of an origin, and the origin itself when it is new.

        Raises:
            ValueError: this process has requested as many origins as a log can have.
        """
        content = (kind, name, version, hash_)
        number = self._numbers.get(content)
        new = None
        if number is None:
            self._make_room()
            number = self._last = self._last + 1
            new = self.known[number] = Origin(number, *content)
            self._numbers[content] = number
        self._asked.add(number)
        return number, new

    def _make_room(self) -> None:
        """Forget the oldest origin that this process has not requested, if there is no room for one more."""
        if len(self.known) < ORIGINS_MAX:
            return
        oldest = min(self.known.keys() - self._asked, default=None)
        if oldest is None:
            raise ValueError(f"a log knows {ORIGINS_MAX} origins at most, and this process uses as many: use fewer")
        del self._numbers[_content(self.known.pop(oldest))]


def _content(origin: Origin) -> _Content:
    return origin.kind, origin.name, origin.version, origin.hash
