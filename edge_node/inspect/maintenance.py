"""Commands that own a node's log or ask its owner: dropping a backlog, renaming, and the comparison of names."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from weft.config.errors import Finding, KeyPath
from weft.config.machine import run_as, user
from weft.config.models import EdgeConfig
from weft.edge_node.check.streams import segment_bytes
from weft.edge_node.control.client import DropRequest, ask_drop, check_listens
from weft.edge_node.inspect.summary import summarise
from weft.edge_node.inspect.view import Cursor, LogDirectory, NoLog, is_locked
from weft.edge_node.links.links import Links
from weft.edge_node.streams import STATE_STREAMS
from weft.edge_node.timing import clock_reader, wall_clock
from weft.protocols.batch import BatchHeader, decode_header
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.lane import NodeName, format_log_id
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import Footer
from weft.replication.events import LinkState
from weft.storage.data_directory import DataDirectory
from weft.storage.filesystem import DirectoryInUse, OSFileSystem
from weft.storage.segment_log import LogSettings, SegmentLog
from weft.storage.segment_log.space import held_within, whole_batches

# A node's log opened by a command: as its owner, while the node does not run and cannot start.


class NotTheOwner(Exception):
    """An error: the node could not read the files that this user would create."""


@contextmanager
def exclusive_log(directory: str, settings: LogSettings) -> Iterator[SegmentLog]:
    """Open the log in a node's data_dir, for as long as the context lasts.

    Without the streams' policies: nothing expires and nothing is dropped meanwhile.

    Raises:
        NotTheOwner: the folder is another user's.
        DirectoryInUse: the node runs.
        LogError: the log cannot be opened; the text has the reason.
    """
    check_user(directory)
    log = SegmentLog.open(
        directory,
        settings,
        wall_clock=wall_clock,
        clock_reading=clock_reader(),
        random_bits=random.SystemRandom().getrandbits,
        post=_at_once,
        start_writer=False,
        guard=_Formats(directory),
    )
    try:
        yield log
    finally:
        log.close()


class _Formats:
    """The formats of the folder, which a command only checks. Stating them is left to the node, which writes more than
    the log."""

    def __init__(self, directory: str) -> None:
        self._directory = DataDirectory(OSFileSystem(), directory, "")

    def check(self) -> None:
        self._directory.check()

    def state(self) -> None:
        pass


def check_user(directory: str) -> None:
    """Check that the folder belongs to this user.

    Raises:
        NotTheOwner: it belongs to another user.
    """
    owner = os.stat(directory).st_uid
    if owner != os.geteuid():
        # Root too: the node could not write to files that root creates in its folder.
        raise NotTheOwner(f"{directory} belongs to user {user(owner)}. {run_as(owner)}")


def _at_once(deliver: Callable[[], None]) -> None:
    deliver()


# Dropping a backlog at an operator's request, on a stopped or running node (``weft log drop``).

_SEGMENT_BYTES = 64 << 10
"""Segment size for the few bytes to write; half of the node's own, far larger segment size is always free within its
budget."""
_ROOM_BYTES = 16 << 20


class UnknownStream(ValueError):
    """An error: the log has no such stream."""


@dataclass(frozen=True)
class DropPreview:
    """The records that would be dropped."""

    numbers: RangeSet
    first_time: int = 0
    """Times of receipt of the first and the last of them, ns since 1970; 0 when there are none."""
    last_time: int = 0


class StoppedLog:
    """The log of a stopped node, opened by ``stopped_log``."""

    def __init__(self, log: SegmentLog) -> None:
        """Wrap an open log; called by ``stopped_log``."""
        self._log = log

    def backlog(self, stream: str, end: int | None = None) -> DropPreview:
        """Return the records that ``drop_backlog`` would drop.

        Raises:
            UnknownStream: the log has no such stream of devices.
            LogError: a file cannot be read.
        """
        number = self._number(stream)
        held = self._log.ranges(number)
        end = self._log.durable_end(number) if end is None else min(end, self._log.durable_end(number))
        first, end = whole_batches(held, lambda seq: self._log.read(number, seq, 1), 0, end)
        numbers = RangeSet(held_within(held, first, end))
        if not numbers:
            return DropPreview(numbers)
        first_batch, last_batch = (self._log.read(number, seq, 1)[0] for seq in (next(iter(numbers))[0], end - 1))
        return DropPreview(numbers, decode_header(first_batch).first_time, decode_header(last_batch).last_time)

    def drop_backlog(self, stream: str, end: int | None = None) -> RangeSet:
        """Drop a stream's records that no hub is known to have, under a notice; durable when this returns.

        A stopped node does not know what hubs have: they report it when the links connect again, and apply the notices
        only to records that they lack. For a running node see ``SegmentLog.drop_backlog``.

        Args:
            end: number after the last one to drop, in whole batches; None for all records.

        Returns:
            The dropped records.

        Raises:
            UnknownStream: the log has no such stream of devices.
            LogError: the log cannot be read or written; the text has the reason.
        """
        numbers = self._log.drop_backlog(self._number(stream), 0, end)
        while self._log.committer.run_once():
            pass
        if self._log.failed is not None:
            raise self._log.failed
        return numbers

    def _number(self, stream: str) -> int:
        _check_stream(stream, self._log.streams())
        return self._log.streams()[stream]


class RunningLog:
    """The log of a running node: inspected from outside, changed by the node."""

    def __init__(self, directory: str) -> None:
        """Open the log in a node's data_dir, and check on each use that it is the same log.

        Raises:
            ControlFailed: its node accepts no requests, or none from this user.
            NoLog: none of its files has the id of the log.
        """
        check_listens(directory)
        self._directory = LogDirectory(directory)
        log_id = self._directory.log_id()
        if log_id is None:
            raise NoLog(f"{directory} holds no file with the id of its log")
        self._log_id = format_log_id(log_id)

    def backlog(self, stream: str, end: int | None = None) -> DropPreview:
        """Return the records that ``drop_backlog`` would drop at most: hubs may have some of them, which only the node
        knows.

        Raises:
            NoLog: there is none.
            UnknownStream: the log has no such stream of devices.
            OSError: a file cannot be read.
            UnsupportedVersion: a later release wrote the log.
        """
        found = summarise(self._directory)
        _check_stream(stream, found.streams)
        held = found.streams[stream].held
        end = held.end if end is None else min(end, held.end)
        cut = self._batch(stream, end) if end in held else None
        numbers = RangeSet(held_within(held, 0, end if cut is None else cut.base_seq))
        if not numbers:
            return DropPreview(numbers)
        # For records deleted since the summary, the times of the whole stream remain.
        first, last = self._batch(stream, next(iter(numbers))[0]), self._batch(stream, numbers.end - 1)
        first_time = found.streams[stream].first_time if first is None else first.first_time
        last_time = found.streams[stream].last_time if last is None else last.last_time
        return DropPreview(numbers, first_time or 0, last_time or 0)

    def drop_backlog(self, stream: str, end: int) -> RangeSet:
        """Request the node to drop the numbers below ``end`` that no hub has; durable when this returns.

        Returns:
            The dropped ranges.

        Raises:
            ControlFailed: the node dropped nothing, or it is unknown what it dropped. A repeated request is harmless.
        """
        return ask_drop(self._directory.path, DropRequest(self._log_id, stream, end))

    def _batch(self, stream: str, seq: int) -> BatchHeader | None:
        """Return the batch that holds a number. Reads a segment or two."""

        def skips(footer: Footer) -> bool:
            ours = [lane for lane in (*footer.lanes, *footer.moved) if footer.streams.get(lane.stream) == stream]
            return not any(seq in RangeSet(lane.ranges) for lane in ours)

        cursor = Cursor(self._directory, None, stream.__eq__, skips)
        try:
            for commit in cursor.read():
                for item in commit.items:
                    header = item[1].value if isinstance(item, tuple) else None
                    if isinstance(header, BatchHeader) and header.base_seq <= seq < header.end_seq:
                        return header
        finally:
            cursor.close()
        return None


def _check_stream(stream: str, names: Iterable[str]) -> None:
    known = set(names) - STATE_STREAMS
    if stream not in known:
        raise UnknownStream(f"the log has no stream {stream}; it has {', '.join(sorted(known)) or 'none'}")


@contextmanager
def opened_log(directory: str) -> Iterator[StoppedLog | RunningLog]:
    """Open the log in a node's data_dir, whether or not the node runs: with ``stopped_log`` if it does not.

    Raises:
        NoLog: there is none.
        NotTheOwner: the folder is another user's; root may send requests to a running node.
        ControlFailed: the node runs, and accepts no requests, or none from this user.
        LogError: the log cannot be opened; the text has the reason.
    """
    with ExitStack() as stack:
        log: StoppedLog | RunningLog
        try:
            log = stack.enter_context(stopped_log(directory))
        except DirectoryInUse:
            log = RunningLog(directory)
        except NotTheOwner:
            if os.geteuid() != 0 or not is_locked(directory):
                raise
            log = RunningLog(directory)
        yield log


@contextmanager
def stopped_log(directory: str) -> Iterator[StoppedLog]:
    """Open the log in a node's data_dir, for as long as the context lasts; the node cannot start meanwhile.

    Raises:
        NoLog: there is none.
        NotTheOwner: the folder is another user's.
        DirectoryInUse: the node runs.
        LogError: the log cannot be opened; the text has the reason.
    """
    LogDirectory(directory).require()
    size = sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())
    settings = LogSettings(segment_bytes=_SEGMENT_BYTES, budget_bytes=size + _ROOM_BYTES, tail_bytes=0)
    with exclusive_log(directory, settings) as log:
        yield StoppedLog(log)


# Comparison of the name in a configuration with the name that the log in its data_dir belongs to.


def owner_of(directory: str) -> NodeName | None:
    """Return the name that the log in ``directory`` belongs to; None when there is none, or it cannot be read."""
    try:
        return LogDirectory(directory).owner()
    except (OSError, UnsupportedVersion):
        return None


def wrong_name(config: EdgeConfig, owner: NodeName, file: str) -> Finding | None:
    """Return the finding for a wrong name in ``config``, when the log is ``owner``'s; None when they agree.

    Args:
        file: file of the configuration, for the command to run.
    """
    if owner == (config.tenant, config.node):
        return None
    settings = {"tenant": (config.tenant, owner.tenant), "node": (config.node, owner.edge)}
    changed = {key: theirs for key, (ours, theirs) in settings.items() if ours != theirs}
    path: KeyPath = ("node" if "node" in changed else "tenant",)
    back = " and ".join(f"`{key}: {name}`" for key, name in changed.items())
    return Finding(
        path,
        f"the log in {config.data_dir} belongs to {owner}, but this configuration names "
        f"{config.tenant}/{config.node}. Put {back} back, or give the log the new name: weft edge rename {file}",
    )


# Renaming of a stopped node's log (``weft edge rename``).
#
# A record keeps the name under which it was sent: tenant, edge, log id, stream, sequence number. So all records that
# links carry are delivered under the former name first, and only then does the log get the new name, for later
# numbers. A log of which no hub has records is renamed as a whole.

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
        """Run the links under the former name until their hubs have all records, or make no more progress. If they
        have, give the log the new name and tell them so.

        Args:
            patience_s: longest time without an acknowledgement from any hub.
            tell: called with the number of waiting records, whenever it changes.

        Returns:
            The records that hubs lack. Pairs without records have only notices: the hub has not received losses.

        Raises:
            LogError: as ``finish``.
        """
        self._links.start()
        renamed_to = ""
        try:
            await self._until_still(patience_s, tell)
            left = self._links.waiting()
            troubles = {link.name: _trouble(link.state, link.last_error) for link in self._links.statuses}
            if not any(records for records, _ in left.values()):
                # Before the last word that says so: a node that kept its name could take in more under it.
                self._rename()
                renamed_to = self.name.edge if self.name.tenant == self.former.tenant else ""
        finally:
            await self._links.close(renamed_to)
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
        if self._log.owner != self.name:
            self._rename()
        self._links.record_new_name(self.name)

    def _rename(self) -> None:
        self._log.rename(self.name, from_now_on=not self.is_unsent)


def _trouble(state: LinkState, error: str) -> str:
    return error or ("the hub has not acknowledged them yet" if state is LinkState.CONNECTED else "no hub answered")


@contextmanager
def renaming(config: EdgeConfig, software: str) -> Iterator[Renaming]:
    """Open the log of ``config``'s node for a rename to the name in ``config``. The node cannot start meanwhile.

    Raises:
        NoLog: there is no log: the node uses the name at its first start.
        NameUnknown: a log whose node ended before its name was in it.
        NotTheOwner: the folder is another user's.
        DirectoryInUse: the node runs.
        LogError: the log cannot be opened; the text has the reason.
    """
    LogDirectory(config.data_dir).require()
    settings = LogSettings(segment_bytes=segment_bytes(config), budget_bytes=config.disk.budget_bytes, tail_bytes=0)
    with exclusive_log(config.data_dir, settings) as log:
        if log.owner is None:
            raise NameUnknown(
                f"the log in {config.data_dir} does not name its node yet. Start the node once under its former name, "
                "then rename it"
            )
        yield Renaming(config, log, log.owner, software)
