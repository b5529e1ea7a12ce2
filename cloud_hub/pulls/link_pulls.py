"""The pulls of one link: what the edge was asked for, and a guard of the lanes that bring it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from weft.protocols.batch import BatchHeader
from weft.protocols.link.pull import PullRequest, PullStage, PullState
from weft.protocols.ranges import RangeSet

SAID_MAX = 256
"""Maximum number of words of an edge about its pulls between two frames from the hub about them. Each may become an
entry of the cluster log."""
SPARE_BYTES = 1 << 20
"""Bytes, beside twice those that the edge announced, that may come: it may join batches, and send some again."""


class Broken(Exception):
    """Records or words of an edge that it was not asked for. The message says why."""


class _Asked(NamedTuple):
    """A pull on this link."""

    request: PullRequest
    ranges: RangeSet
    """Numbers that the edge announced; empty before."""
    log_id: int
    bytes_max: int


class LinkPulls:
    """The guard of one link."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}
        self._came: dict[str, int] = {}
        """Pull -> bytes that came on this link."""
        self._said = 0

    @property
    def is_idle(self) -> bool:
        """Return whether the edge was asked for nothing."""
        return not self._asked

    def ask(self, requests: Iterable[PullRequest]) -> list[PullRequest] | None:
        """Ask for these pulls and no others. Return the frame's content; None if the edge knows it already."""
        wanted = {each.id: each for each in requests}
        if wanted.keys() == self._asked.keys():
            return None
        self._asked = {id_: self._asked.get(id_) or _Asked(each, RangeSet(), 0, 0) for id_, each in wanted.items()}
        self._came = {id_: size for id_, size in self._came.items() if id_ in wanted}
        self._said = 0
        return list(wanted.values())

    def says(self, state: PullState) -> bool:
        """Take a word of the edge. Return whether it is about a pull of this link.

        Raises:
            Broken: it announces what it was not asked for.
        """
        asked = self._asked.get(state.id)
        if state.stage == PullStage.WAITING:
            return asked is not None  # no entry comes of it, and an edge whose disk is ill says it again and again
        self._said += 1
        if self._said > SAID_MAX:
            raise Broken(f"the edge said more than {SAID_MAX} words about its pulls")
        if asked is None:
            return False
        if state.stage == PullStage.SENDING:
            if state.bytes > asked.request.bytes_max:
                raise Broken(f"the edge announced {state.bytes} bytes; {asked.request.bytes_max} are possible")
            ranges = RangeSet((first, end) for first, end in state.ranges if first < end)
            if ranges.count() != state.records:
                raise Broken(f"the edge announced {state.records} records in ranges of {ranges.count()}")
            self._asked[state.id] = _Asked(asked.request, ranges, state.log_id, 2 * state.bytes + SPARE_BYTES)
        return True

    def covers(self, stream: str, log_id: int) -> bool:
        """Return whether an announced pull brings records of a stream of a log."""
        return any(each.request.stream == stream and each.ranges and each.log_id == log_id for each in self._all())

    def _all(self) -> Iterable[_Asked]:
        return self._asked.values()

    def check(self, stream: str, headers: Iterable[BatchHeader]) -> None:
        """Check batches of a stream.

        Raises:
            Broken: one was not announced, or is of another time.
        """
        for header in headers:
            found = next((id_ for id_, each in self._asked.items() if _has(each, stream, header)), None)
            if found is None:
                raise Broken(
                    f"records {header.base_seq} to {header.end_seq - 1} of stream {stream} are in none of the windows "
                    "that the edge was asked for"
                )
            self._came[found] = self._came.get(found, 0) + header.length
            if self._came[found] > self._asked[found].bytes_max:
                raise Broken(f"the edge sent more bytes than it announced for pull {found}")


def _has(asked: _Asked, stream: str, header: BatchHeader) -> bool:
    request, times = asked.request, (header.first_time, header.last_time)
    return (
        request.stream == stream
        and asked.ranges.covers(header.base_seq, header.end_seq)
        and min(times) < request.end
        and max(times) >= request.first
    )
