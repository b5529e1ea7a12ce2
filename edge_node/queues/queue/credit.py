"""Credit: the number of messages that a reader of queues may be sent before it acknowledges some or grants more."""

from __future__ import annotations

from typing import Final, Protocol

UNLIMITED: Final = 1 << 60


class CreditWaiter(Protocol):
    """A reader that waits for credit."""

    def resume(self) -> None:
        """Resume."""


class Credit:
    """Messages that may be sent. One credit may be shared by several consumers, such as those of a channel.

    For a prefetch, ``comes_back`` is true: each settled message frees its credit. For credit of AMQP 1.0 it is false:
    the peer grants more. A credit without limit that is held and freed represents a socket.
    """

    __slots__ = ("_held", "_left", "_limit", "_waiting", "comes_back")

    def __init__(self, limit: int = UNLIMITED, *, comes_back: bool = False) -> None:
        self._limit = self._left = limit
        self.comes_back = comes_back
        self._held = False
        self._waiting: dict[CreditWaiter, None] = {}

    @property
    def left(self) -> int:
        """Return the number of messages that may be sent now."""
        return 0 if self._held else self._left

    def take(self, count: int) -> None:
        """Note that messages are sent."""
        self._left -= count

    def give(self, count: int) -> None:
        """Allow so many more messages. Consumers that waited for credit resume."""
        self._left += count
        self._resume()

    def set_limit(self, limit: int) -> None:
        """Change the limit of a prefetch; unsettled messages count against the new one. 0 means no limit, as in
        basic.qos. For credit of AMQP 1.0: the peer allows so many messages from now on."""
        limit = limit or (UNLIMITED if self.comes_back else 0)
        self._left = self._left + limit - self._limit if self.comes_back else limit
        self._limit = limit
        self._resume()

    def hold(self) -> None:
        """Allow no messages until ``free``."""
        self._held = True

    def free(self) -> None:
        """End what ``hold`` began."""
        self._held = False
        self._resume()

    def wait(self, consumer: CreditWaiter) -> None:
        """Resume a consumer when there is credit."""
        self._waiting[consumer] = None

    def forget(self, consumer: CreditWaiter) -> None:
        """Forget a reader that no longer waits."""
        self._waiting.pop(consumer, None)

    def _resume(self) -> None:
        if self._waiting and self.left > 0:
            waiting, self._waiting = self._waiting, {}
            for consumer in waiting:
                consumer.resume()
