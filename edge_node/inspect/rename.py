"""Renaming of a stopped node's log (``weft edge rename``).

A record keeps the name under which it was sent: tenant, edge, log id, stream, sequence number. So all records that
links carry are delivered under the former name first, and only then does the log get the new name, for later numbers. A
log of which no hub has records is renamed as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from weft.config.models import EdgeConfig
from weft.edge_node.check import segment_bytes
from weft.edge_node.inspect.exclusive_log import exclusive_log
from weft.edge_node.inspect.view import LogDirectory
from weft.edge_node.links.links import Links
from weft.edge_node.timing.clock import wall_clock
from weft.protocols.lane import NodeName
from weft.replication.status import LinkState
from weft.storage.segment_log import LogSettings, SegmentLog

_LOOK_INTERVAL_S = 0.1
_REFUSALS = (LinkState.REFUSED, LinkState.CONFLICT)


class NameUnknown(Exception):
    """An error: the log does not name the owner of its records."""


class UndeliveredRecords(NamedTuple):
    """The records of one stream that a hub lacks under the former name."""

    link: str
    stream: str
    records: int
    """Number of records in the log that are not known to be at the hub."""
    trouble: str
    """Reason why the link did not deliver them."""


class Renaming:
    """The log of a stopped node during its renaming; created by ``renaming``."""

    def __init__(self, config: EdgeConfig, log: SegmentLog, former: NodeName, software: str) -> None:
        """Wrap an open log; called by ``renaming``."""
        self._log = log
        self.former = former
        self.name = NodeName(config.tenant, config.node)
        """New name, from the configuration."""
        as_before = msgspec.structs.replace(config, tenant=former.tenant, node=former.edge)
        self._links = Links(as_before, log, wall_clock=wall_clock, software=software)

    @property
    def is_unsent(self) -> bool:
        """Return whether no hub has records under the former name; False also when that is unknown."""
        return self._links.is_unsent

    def waiting_records(self) -> int:
        """Return the number of records not known to be at a hub; records of several links count for each."""
        return sum(records for records, _ in self._links.waiting().values())

    async def deliver(self, patience_s: float, tell: Callable[[int], None]) -> list[UndeliveredRecords]:
        """Run the links under the former name until their hubs have all records, or make no more progress.

        Args:
            patience_s: longest time without an acknowledgement from any hub.
            tell: called with the number of waiting records, whenever it changes.

        Returns:
            The records that hubs lack. Pairs without records have only notices: the hub has not received losses.
        """
        self._links.start()
        try:
            await self._until_still(patience_s, tell)
            left = self._links.waiting()
            troubles = {link.name: _trouble(link.state, link.last_error) for link in self._links.statuses}
        finally:
            await self._links.close()
        return [
            UndeliveredRecords(link, stream, records, troubles[link]) for (link, stream), (records, _) in left.items()
        ]

    async def _until_still(self, patience_s: float, tell: Callable[[int], None]) -> None:
        loop = asyncio.get_running_loop()
        before, since = self._links.waiting(), loop.time()
        while before and loop.time() - since < patience_s:
            late = {link for link, _ in before}
            if all(link.state in _REFUSALS for link in self._links.statuses if link.name in late):
                return
            await asyncio.sleep(_LOOK_INTERVAL_S)
            now = self._links.waiting()
            if now != before:
                before, since = now, loop.time()
                tell(self.waiting_records())

    def finish(self) -> None:
        """Give the log the new name, durably when this returns.

        Raises:
            LogError: the name did not become durable; a later try starts over.
        """
        self._log.rename(self.name, from_now_on=not self.is_unsent)
        self._links.record_new_name(self.name)


def _trouble(state: LinkState, error: str) -> str:
    return error or ("the hub has not acknowledged them yet" if state is LinkState.CONNECTED else "no hub answered")


@contextmanager
def renaming(config: EdgeConfig, software: str) -> Iterator[Renaming]:
    """Open the log of ``config``'s node for a rename to the name in ``config``. The node cannot start meanwhile.

    Raises:
        NoLog: there is no log: the node uses the name at its first start.
        NameUnknown: a log of an earlier release, not started since.
        NotTheOwner: the folder is another user's.
        DirectoryInUse: the node runs.
        LogError: the log cannot be opened; the text has the reason.
    """
    LogDirectory(config.data_dir).require()
    settings = LogSettings(segment_bytes=segment_bytes(config), budget_bytes=config.disk.budget_bytes, tail_bytes=0)
    with exclusive_log(config.data_dir, settings) as log:
        if log.owner is None:
            raise NameUnknown(
                f"the log in {config.data_dir} was written by an earlier release and does not name its node. Start "
                "the node once under its former name, then rename it"
            )
        yield Renaming(config, log, log.owner, software)
