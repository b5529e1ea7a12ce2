"""Notices of the clocks of one log's boots from a link, until the shard's log has them."""

from __future__ import annotations

from weft.protocols.chunk import ClockUpdate
from weft.protocols.shard.shard_state import BOOTS_MAX, ShardState


class ClockNotices:
    """Notices of a log's clocks that no chunk has yet. A link's sessions with lanes of the log share them, so that the
    cost of a notice does not depend on their number."""

    __slots__ = ("_by_boot", "_settled_at")

    def __init__(self) -> None:
        self._by_boot: dict[int, ClockUpdate] = {}
        self._settled_at = -2
        """Number of the state's chunk at the last ``settle``."""

    def __bool__(self) -> bool:
        """Return whether a notice waits."""
        return bool(self._by_boot)

    def tell(self, clock: ClockUpdate) -> None:
        """Add a notice; the latest of a boot counts, and of too many boots the latest ones."""
        self._settled_at = -2
        self._by_boot.pop(clock.boot_id, None)
        self._by_boot[clock.boot_id] = clock
        if len(self._by_boot) > BOOTS_MAX:
            del self._by_boot[next(iter(self._by_boot))]

    def of(self, boot_id: int) -> ClockUpdate | None:
        """Return the notice of a boot."""
        return self._by_boot.get(boot_id)

    def news(self, state: ShardState) -> list[ClockUpdate]:
        """Return the notices that a state lacks."""
        return [clock for clock in self._by_boot.values() if not state.knows_clock(clock)]

    def settle(self, state: ShardState) -> None:
        """Remove the notices that a state has."""
        if self._settled_at == state.n:
            return
        self._settled_at = state.n
        self._by_boot = {clock.boot_id: clock for clock in self.news(state)}
