"""A log's epoch as decimal text, in a place of its owner's choice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

EPOCH_BYTES_MAX: Final = 32
STANDING_MAX: Final = 64


class Epochs:
    """A log's epoch, shared by all its links. Every call blocks on the disk.

    Edge links and links between hubs store it in different places, so two functions read and write it.

    Args:
        place: path or address of the epoch, for error messages.
        read: returns the last written text; raises ``FileNotFoundError`` before the first.
        write: replaces the text durably, or not at all.
    """

    def __init__(self, place: str, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        self._place = place
        self._read = read
        self._write = write
        self._lock = threading.Lock()
        self._base: int | None = None
        """Epoch that was stored before the first proposal."""
        self._standing: list[int] = []
        """Proposals that were not withdrawn, the newest last."""

    def propose(self) -> int:
        """Return the next epoch, durable when this returns.

        Raises:
            OSError: the epoch cannot be read or replaced.
            ValueError: the stored text is not a number.
        """
        with self._lock:
            current = self._current()
            if self._base is None:
                self._base = current
            epoch = current + 1
            self._write(b"%d\n" % epoch)
            self._standing = [*self._standing, epoch][-STANDING_MAX:]
            return epoch

    def withdraw(self, epoch: int) -> None:
        """Note that no hub accepted ``epoch``: propose it again, unless a later proposal is still in use.

        Raises as ``propose``.
        """
        with self._lock:
            current = self._current()
            if epoch in self._standing:
                self._standing.remove(epoch)
                epoch = max([self._base or 0, *self._standing])
            elif epoch == current:
                epoch -= 1
            else:
                return
            if epoch < current:
                self._write(b"%d\n" % epoch)

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
