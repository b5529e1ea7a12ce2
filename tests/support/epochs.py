"""A log's epoch that need not survive."""

from __future__ import annotations

from weft.replication.source import Epochs


class MemoryEpochs(Epochs):
    """Epochs kept in memory, with the list of those that were proposed."""

    def __init__(self, epoch: int = 0) -> None:
        self.proposed: list[int] = []
        stored = [b"%d\n" % epoch]
        super().__init__("memory", lambda: stored[0], lambda data: stored.__setitem__(0, data))

    def propose(self) -> int:
        self.proposed.append(super().propose())
        return self.proposed[-1]
