"""Opening a log: combine the contents of its segments, cut a torn tail, record losses.

Recovery needs no operator: the log opens after any damage, with a report of cuts and losses. The only exception is a
directory of a later release, which is not changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from weft.protocols.lane import NodeName
from weft.protocols.segment import GapNotice, Owner
from weft.storage.segment_log.commit.segment_file import SegmentWriter
from weft.storage.segment_log.errors import WrongOwner
from weft.storage.segment_log.names import DAMAGED
from weft.storage.segment_log.recover.account import find_losses, fold
from weft.storage.segment_log.recover.identity import Identity, keep_identity
from weft.storage.segment_log.recover.loading import Loaded
from weft.storage.segment_log.recover.resume import continue_or_create
from weft.storage.segment_log.room.quarantine import keep_aside, report_damage
from weft.storage.segment_log.state.log_state import LogState
from weft.storage.segment_log.walk.scan import Scan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecoveryReport:
    """Findings and actions of opening a log."""

    created: bool = False
    """True if the log is new: no usable segment was there."""
    segments: int = 0
    torn_bytes: int = 0
    """Bytes cut from the end of the newest segment: a commit whose fsync never returned. None were acknowledged."""
    torn_file: str | None = None
    torn_offset: int | None = None
    """Offset in ``torn_file`` of the cut."""
    unreadable_bytes: int = 0
    """Bytes at the place of the newest records that the device cannot read. The number of lost records is unknown;
    entries of ``gaps`` that end at a stream's next number are an upper bound."""
    damaged: tuple[str, ...] = ()
    """Files with damage, or possibly of another log, each kept aside as ``<name>.damaged``."""
    gaps: tuple[GapNotice, ...] = ()
    """Acknowledged records found missing at this start, each range now recorded as a gap."""
    lanes: dict[str, int] = field(default_factory=dict)
    """Stream -> its next sequence number."""
    seconds: float = 0.0


def recover(  # noqa: PLR0917 - what was found, who asks, and when
    state_of: Callable[[int], LogState],
    loaded: list[Loaded],
    known: Identity | None,
    owner: NodeName | None,
    new_id: int,
    now: int,
) -> tuple[LogState, SegmentWriter, RecoveryReport]:
    """Build the log's state from its segments and choose the segment to write.

    Args:
        state_of: makes an empty state for a log id.
        known: content of the file beside the segments; segments without a sound header are checked with its log id.
        owner: required owner of the log, and the owner of a log without one; None accepts any.
        new_id: the log id if there is no log yet.

    Raises:
        WrongOwner: the log has another owner; nothing was written.
        OSError: a write failed; opening again starts over.
    """
    known_id = known.log_id if known and loaded else None
    log_id = next((item.header.log_id for item in reversed(loaded) if item.header), known_id)
    state = state_of(new_id if log_id is None else log_id)
    fold(state, loaded)
    if owner is not None:
        _check_owner(state, owner)
    if known is not None and known.log_id == log_id:
        state.first_seq = max(state.first_seq, known.first_seq)
    # Before the log continues in a new segment: after that, nothing shows that this one may hide a stream's name.
    keep_identity(state.filesystem, state.directory, Identity(state.log_id, state.first_seq))
    gaps = find_losses(state, loaded, now)
    damaged = _keep_aside(state, loaded, gaps)
    for item in loaded[:-1]:
        item.segment.index.forget_names()
    lanes = {lane.name: lane.next_seq for lane in state.lanes.values()}
    report = RecoveryReport(log_id is None, len(loaded), damaged=damaged, gaps=tuple(gaps), lanes=lanes)
    newest = loaded[-1] if loaded else None
    if newest and newest.scan and newest.scan.unreadable_bytes:
        report = replace(report, unreadable_bytes=newest.scan.unreadable_bytes)
        logger.error(
            "%d bytes of %s where the newest records stood cannot be read. How many records they held is not known: "
            "the notices say up to how many, and streams go on behind them at %s",
            report.unreadable_bytes, newest.segment.path, lanes,
        )  # fmt: skip
    if newest and newest.scan and newest.scan.torn_bytes:
        path, end, torn_bytes = newest.segment.path, newest.segment.end, newest.scan.torn_bytes
        report = replace(report, torn_bytes=torn_bytes, torn_file=path, torn_offset=end)
        logger.warning(
            "cut a torn tail of %d bytes from %s at offset %d: an unacknowledged commit; streams go on at %s",
            torn_bytes, path, end, lanes,
        )  # fmt: skip
    if gaps:
        # Before a segment is begun, so that its entry of accounted numbers includes them.
        state.queue.add_gaps(gaps)
    writer = continue_or_create(state, loaded, now)
    return state, writer, report


def _check_owner(state: LogState, owner: NodeName) -> None:
    if state.owner is None:
        # A new log, or one of a release that did not record owners.
        state.owner = Owner(*owner, [])
    elif state.owner.name != owner:
        raise WrongOwner(state.directory, state.owner.name, owner)


def _keep_aside(state: LogState, loaded: list[Loaded], gaps: list[GapNotice]) -> tuple[str, ...]:
    damaged = []
    for item in loaded:
        footer_lost = item.scan is not None and item is not loaded[-1]
        if (item.damaged or footer_lost) and keep_aside(state.filesystem, item.segment.path):
            damaged.append(item.segment.path)
            report_damage(item.segment.path, item.scan or Scan(), gaps)
    segments = {item.segment.path for item in loaded}
    for name in state.filesystem.list_names(state.directory):
        path = os.path.join(state.directory, name)
        if name.endswith(DAMAGED) and path.removesuffix(DAMAGED) not in segments:
            with contextlib.suppress(FileNotFoundError):
                state.asides[path] = state.filesystem.size(path)
    return tuple(damaged)
