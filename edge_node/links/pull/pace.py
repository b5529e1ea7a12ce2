"""The pace of a pull: pieces that grow while the link takes them easily, one at a time."""

from __future__ import annotations

PIECE_BYTES_MIN, PIECE_BYTES_START, PIECE_BYTES_MAX = 4 << 10, 16 << 10, 256 << 10
"""Bytes of a piece. A live record waits for one piece at most; one batch is a piece if it is longer."""
RATE_SHARE = 0.5
"""Longest piece, in seconds of the rate."""
GROWTH, SLOWER, NOISE_S = 1.25, 1.25, 0.15
"""A piece that takes more than ``SLOWER`` times the shortest time, and ``NOISE_S``, halves the next one: the link's
queue grows. The hub's commits alone vary by less."""
SHORTEST_KEPT = 64
"""Number of pieces after which the shortest time is measured again, with a short one: the link may be another one by
then."""


class PullPace:
    """The pace on one connection.

    Args:
        rate: bytes a second.
        now: monotonic seconds, as everywhere here.
    """

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._longest = max(PIECE_BYTES_MIN, min(PIECE_BYTES_MAX, int(rate * RATE_SHARE)))
        self.piece = min(PIECE_BYTES_START, self._longest)
        """Bytes of the next piece."""
        self._shortest: float | None = None
        self._count = 0
        self._next_at = self._began = now

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next piece may go."""
        return max(0.0, self._next_at - now)

    def begins(self, size: int, now: float) -> None:
        """Note that a piece of some bytes may go now."""
        self._began = now
        self._next_at = max(self._next_at, now - 1.0) + size / self._rate

    def ends(self, now: float) -> None:
        """Note that the piece is durable at the hub."""
        took, self._count = now - self._began, self._count + 1
        if self._count % SHORTEST_KEPT == 0:
            # A long piece must not become the measure of the next ones.
            self.piece, self._shortest = min(PIECE_BYTES_START, self._longest), None
            return
        self._shortest = took if self._shortest is None else min(self._shortest, took)
        if took > SLOWER * self._shortest + NOISE_S:
            self.piece = max(PIECE_BYTES_MIN, self.piece // 2)
        else:
            self.piece = min(self._longest, int(self.piece * GROWTH))
