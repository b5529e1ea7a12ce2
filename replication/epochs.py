"""A link's epoch as decimal text, wherever its owner stores it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

EPOCH_BYTES_MAX: Final = 32


class Epochs:
    """A link's epoch (``replication.runner.EpochStore``). Every call blocks on the disk.

    Edge links and links between hubs keep it in different places, so the place comes in as two calls.

    Args:
        place: path or address of the epoch, for error messages.
        read: returns what was written last; raises ``FileNotFoundError`` before that.
        write: replaces it durably, or not at all.
    """

    def __init__(self, place: str, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        self._place = place
        self._read = read
        self._write = write

    def propose(self) -> int:
        """Return the next epoch, durable when this returns.

        Raises:
            OSError: the epoch cannot be read or replaced.
            ValueError: the stored text is no number.
        """
        epoch = self._current() + 1
        self._write(b"%d\n" % epoch)
        return epoch

    def withdraw(self, epoch: int) -> None:
        """Propose ``epoch`` again the next time, unless a higher one was proposed since. Raises as ``propose``."""
        if self._current() == epoch:
            self._write(b"%d\n" % (epoch - 1))

    def _current(self) -> int:
        try:
            data = self._read()
        except FileNotFoundError:
            return 0
        if len(data) > EPOCH_BYTES_MAX or not data.strip().isdigit():
            raise ValueError(
                f"{self._place} holds no epoch; if no copy of this node runs elsewhere, start a new data_dir"
            )
        return int(data)
