"""The records of a pull, found in the log before the first of them is sent."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator

from weft.protocols.batch import decode_header
from weft.protocols.link.pull import RANGES_MAX, PullRequest
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import SegmentLog
from weft.storage.segment_log.read.windows import FoundBatch

STEP_BYTES = 4096
"""Neighbouring batches are joined to steps of at least so many bytes: a gigabyte has 260,000 of them at most."""


class CannotPull(Exception):
    """A pull that the edge refuses. The message says why."""


class PullPlan:
    """The numbers of a pull, in steps: pieces that are sent whole."""

    def __init__(self, found: list[FoundBatch]) -> None:
        self.ranges = RangeSet()
        self.bytes = 0
        self._firsts, self._ends, self._sizes = array("Q"), array("Q"), array("Q")
        end = 0
        for each in sorted(found):
            first = max(each.first, end)
            if first >= each.end:
                continue  # a batch that was moved is found twice
            end = each.end
            self.ranges.add(first, end)
            self.bytes += each.size
            if self._ends and self._ends[-1] == first and self._sizes[-1] < STEP_BYTES:
                self._ends[-1], self._sizes[-1] = end, self._sizes[-1] + each.size
            else:
                self._firsts.append(first)
                self._ends.append(end)
                self._sizes.append(each.size)

    @property
    def records(self) -> int:
        """Return the number of records."""
        return self.ranges.count()

    def steps(self) -> Iterator[FoundBatch]:
        """Yield the steps, ascending."""
        return map(FoundBatch, self._firsts, self._ends, self._sizes)


async def make_plan(log: SegmentLog, request: PullRequest, begin: int, bytes_max: int) -> PullPlan:
    """Find the records of a pull.

    Args:
        begin: first number of the stream under the node's present name.
        bytes_max: bytes that the edge's configuration allows.

    Raises:
        CannotPull: there are none, or too many.
        OSError: the log cannot be read.
    """
    steps = log.batches_between(log.stream(request.stream), request.first, request.end)
    found: list[FoundBatch] = []
    size, limit = 0, min(request.bytes_max, bytes_max)
    while (more := await asyncio.to_thread(next, steps, None)) is not None:
        # Joined at once, so that small batches take little memory.
        for each in more:
            if each.first < begin:
                continue
            size += each.size
            last = found[-1] if found else None
            if last is not None and last.end == each.first and last.size < STEP_BYTES:
                found[-1] = FoundBatch(last.first, each.end, last.size + each.size)
            else:
                found.append(each)
        if size > limit:
            raise CannotPull(
                f"the window has more than {limit} bytes, the limit of the pull and of links.<name>.pull.size: ask for "
                "a shorter one"
            )
    plan = await asyncio.to_thread(PullPlan, found)
    if not plan.bytes:
        raise CannotPull("the edge keeps no record of that time")
    if len(plan.ranges) > RANGES_MAX:
        raise CannotPull(f"the window's records lie in {len(plan.ranges)} pieces: ask for a shorter one")
    return plan


async def kept_from(log: SegmentLog, stream: int) -> int:
    """Return the time of the oldest record that the log has of a stream; 0 if it has none.

    Raises:
        OSError, LogFailed: the log cannot be read.
    """
    first = next(iter(log.ranges(stream)), None)
    batches = [] if first is None else await asyncio.to_thread(log.read, stream, first[0], 1)
    return decode_header(batches[0]).first_time if batches else 0
