"""Notices of the clocks of one log's boots that a link brings, until the shard's log has them."""

from __future__ import annotations

from weft.protocols.chunk import ClockUpdate
from weft.protocols.shard.shard_state import BOOTS_MAX, ShardState


class ClockNotices:
    """Notices of a log's clocks that no chunk has yet. A link's sessions with lanes of the log share them: what a
    notice costs does not depend on how many they are."""

    __slots__ = ("_by_boot", "_settled_at")

    def __init__(self) -> None:
        self._by_boot: dict[int, ClockUpdate] = {}
        self._settled_at = -2
        """Number of the state's chunk when what it has was last taken away."""

    def __bool__(self) -> bool:
        """Return whether a notice waits."""
        return bool(self._by_boot)

    def tell(self, clock: ClockUpdate) -> None:
        """Take a notice; the latest of a boot counts, and of too many boots those told last."""
        self._settled_at = -2
        self._by_boot.pop(clock.boot_id, None)
        self._by_boot[clock.boot_id] = clock
        if len(self._by_boot) > BOOTS_MAX:
            del self._by_boot[next(iter(self._by_boot))]

    def of(self, boot_id: int) -> ClockUpdate | None:
        """Return the notice of a boot."""
        return self._by_boot.get(boot_id)

    def news(self, state: ShardState) -> list[ClockUpdate]:
        """Return the notices that a state does not have."""
        return [clock for clock in self._by_boot.values() if not state.knows_clock(clock)]

    def settle(self, state: ShardState) -> None:
        """Take away what a state has."""
        if self._settled_at == state.n:
            return
        self._settled_at = state.n
        self._by_boot = {clock.boot_id: clock for clock in self.news(state)}
