"""Credit: how many messages those who read queues may be sent before they say something."""

from __future__ import annotations

from typing import Final, Protocol

UNLIMITED: Final = 1 << 60


class CreditWaiter(Protocol):
    """One who could be given messages if there were credit."""

    def resume(self) -> None:
        """Go on."""


class Credit:
    """Messages that may be sent. One credit may be shared by several consumers, such as those of a channel.

    For a prefetch, ``comes_back`` is true: what is settled may be sent again. For credit of AMQP 1.0 it is false: the
    peer gives more. A credit without limit that is held and freed stands for a socket.
    """

    __slots__ = ("_held", "_left", "_limit", "_waiting", "comes_back")

    def __init__(self, limit: int = UNLIMITED, *, comes_back: bool = False) -> None:
        self._limit = self._left = limit
        self.comes_back = comes_back
        self._held = False
        self._waiting: dict[CreditWaiter, None] = {}

    @property
    def left(self) -> int:
        """Return how many messages may be sent now."""
        return 0 if self._held else self._left

    def take(self, count: int) -> None:
        """Note that messages are sent."""
        self._left -= count

    def give(self, count: int) -> None:
        """Allow for so many more. Consumers that waited for it go on."""
        self._left += count
        self._resume()

    def set_limit(self, limit: int) -> None:
        """Change the limit of a prefetch; what is unsettled counts against the new one. 0 means none, as in basic.qos.
        For credit of AMQP 1.0: the peer allows for so many from now on."""
        limit = limit or (UNLIMITED if self.comes_back else 0)
        self._left = self._left + limit - self._limit if self.comes_back else limit
        self._limit = limit
        self._resume()

    def hold(self) -> None:
        """Allow for none until ``free``."""
        self._held = True

    def free(self) -> None:
        """End what ``hold`` began."""
        self._held = False
        self._resume()

    def wait(self, consumer: CreditWaiter) -> None:
        """Have a consumer go on when there is credit."""
        self._waiting[consumer] = None

    def forget(self, consumer: CreditWaiter) -> None:
        """Forget one that waits for nothing any more."""
        self._waiting.pop(consumer, None)

    def _resume(self) -> None:
        if self._waiting and self.left > 0:
            waiting, self._waiting = self._waiting, {}
            for consumer in waiting:
                consumer.resume()
