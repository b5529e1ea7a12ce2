"""Copies of other nodes' logs: a peer writes them over a link.

``<data_dir>/pair/<log id>`` is a segment log with the log id, the owner, the stream numbers and the batches of the log
that it copies, and ``<log id>.about`` what it needs beside them. A copy that the disk has damaged, or whose node has
another name now, is continued by a new one, ``<log id>-2``, so that the node at the other end sends everything again
that no hub has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

import msgspec

from weft.edge_node.check.data_directory import COPY_NAME
from weft.edge_node.check.streams import COPIES_MAX
from weft.edge_node.timing import clock_reader
from weft.protocols.batch import BatchHeader
from weft.protocols.checksum import crc32c
from weft.protocols.chunk_index import GapRange, LaneFlag, Mark
from weft.protocols.lane import Lane, NodeName, Origin, format_log_id
from weft.protocols.link import (
    Canary,
    Clock,
    ConfigState,
    DownOpen,
    Hello,
    LaneOpen,
    LaneOrigins,
    NodeReport,
    Outcomes,
    PairReport,
    PullState,
    RefuseCode,
)
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.protocols.segment import GapReason
from weft.replication.events import LinkRefused, taken_before
from weft.replication.flow_control import offered_end
from weft.replication.runner import LinkSession
from weft.storage.filesystem import FileSystem, write_atomically
from weft.storage.segment_log import LogError, LogFull, LogSettings, SegmentLog
from weft.storage.segment_log.encryption import is_sealed

logger = logging.getLogger(__name__)

STREAMS_MAX: Final = 1024
EPOCH_STEP_MAX: Final = 1 << 32
"""Maximum step from one epoch of a node to its next: it counts its connections, and none must use them all up."""
EXPLAINED_MAX: Final = 4096
"""Maximum number of origins, and of clocks, that a copy keeps; the oldest leave first."""
LOST_MAX: Final = 1024
"""Maximum number of notices of loss that a copy keeps of a stream, from the first on."""
ABOUT_BYTES_MAX: Final = 64 << 20
PENDING_BYTES_MAX: Final = 8 << 20
"""Bytes of a copy that wait for the disk, from which on nothing more is read from its node."""
_ABOUT = ".about"
PEER_FILE: Final = "peer"
"""File in the pair's folder with the name of the first node that brought a copy."""
PEER_BYTES_MAX: Final = 1024


class StreamFacts(msgspec.Struct):
    """Facts that the node at the other end has said of one of its streams."""

    topics: list[str]
    payload: int
    mark: tuple[int, int] | None = None
    """Its last mark of which everything is durable here: time, number."""
    compared_end: int | None = None
    """Number from which on the node may have used numbers that hubs have for others: it had not compared its log with
    them since its start. None if it has."""
    lost: list[GapRange] = []
    """Records that the node has lost, and that neither this copy nor every hub is known to have: ascending, the first
    ``LOST_MAX``."""


class _About(msgspec.Struct):
    """Facts that a copy needs beside its records."""

    epoch: int = 0
    """The highest epoch under which the log was copied."""
    streams: dict[str, StreamFacts] = {}
    origins: dict[int, Origin] = {}
    clocks: dict[int, Clock] = {}
    offered: list[str] = []
    """Streams that the node copied on its last connection."""
    is_partial: bool = False
    """True if this node did not take all of them."""


class Copy:
    """One copy of a log. Event loop's thread, except ``load`` and ``remove``."""

    def __init__(self, filesystem: FileSystem, path: str, log: SegmentLog, about: _About, damage: str = "") -> None:
        """Take an open log.

        Args:
            path: its folder.
            damage: why nothing is known beside the records; empty where it is.
        """
        self._filesystem = filesystem
        self.path = path
        self.log = log
        self.about = about
        self.damage = damage
        self.session: LinkSession | None = None
        """Connection of the node that writes it; None while it is away."""
        self._saving = asyncio.Lock()
        self._is_stale = False
        """True if ``about`` has changed since it was stored."""
        self._explains_more = False
        """True if it then has something that records need."""
        self._promised: set[str] = set()
        """Streams of which the node, on its last connection since this start, acknowledged nothing alone."""
        self._whole: set[str] = set()
        """Streams of which it has also said on that connection that all is sent, when that was durable here."""
        self.listeners: list[Callable[[], None]] = []
        """Called when records were forgotten."""

    @classmethod
    def load(
        cls,
        filesystem: FileSystem,
        path: str,
        settings: LogSettings,
        *,
        wall_clock: Callable[[], int],
        post: Callable[[Callable[[], None]], None],
        owner: NodeName | None = None,
    ) -> Copy:
        """Open a copy, or create it. Blocks on the disk. Its records count without the file beside them too.

        Args:
            post: runs a callback of another thread on the event loop's thread.
            owner: name of the node whose log it is; None for that of an existing copy.

        Raises:
            LogError, OSError: the log cannot be opened.
        """
        damage = ""
        try:
            about = _read_about(filesystem, path + _ABOUT)
        except FileNotFoundError:
            about, damage = _About(), "" if owner is not None else "is missing"
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            about, damage = _About(), str(error)
        found = COPY_NAME.fullmatch(os.path.basename(path))
        assert found is not None, "the callers choose the name"
        log_id = int(found[1], 16)
        log = SegmentLog.open(
            path,
            settings,
            wall_clock=wall_clock,
            clock_reading=clock_reader(),
            random_bits=lambda _: log_id,
            post=post,
            filesystem=filesystem,
            owner=owner,
        )
        if damage:
            damage = f"{path}{_ABOUT} cannot be used ({damage}): topics, origins and clocks of the copy are unknown"
            logger.error("%s. A take-over by command brings its records to hubs without them", damage)
        return cls(filesystem, path, log, about, damage)

    @property
    def owner(self) -> NodeName:
        """Return the name of the node whose log it is."""
        return self.log.owner or NodeName("", "")

    @property
    def is_sound(self) -> bool:
        """Return whether the disk has kept everything: a damaged copy is not continued."""
        streams = self.log.streams().values()
        return not self.damage and all(
            gap.reason == GapReason.ABSENT for stream in streams for gap in self.log.gaps(stream)
        )

    def ends(self) -> dict[str, int]:
        """Return stream -> end of the numbers of its records, and of the node's losses, now."""
        streams = self.log.streams().items()
        return {name: max([self.log.next_seq(at), *(gap.end for gap in self.lost(name))]) for name, at in streams}

    def waiting(self, *, compared: bool = False, ends: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return stream -> number of records that no hub is known to have, for streams with any.

        Args:
            compared: leave out those that may have numbers of others at hubs.
            ends: leave out those from the end of their stream on; None for all.
        """
        counts = {}
        for name, stream in self.log.streams().items():
            kept = self.log.kept(stream)[0]
            kept.remove(self.end_to_bring(name, compared=compared, ends=ends), SEQ_END)
            counts[name] = kept.count()
        return {name: count for name, count in counts.items() if count}

    def compared_end(self, stream: str) -> int:
        """Return the end of the numbers that hubs have for no other records, by the node's own comparison."""
        if self.damage:
            return 0
        said = self.about.streams.get(stream)
        return SEQ_END if said is None or said.compared_end is None else said.compared_end

    def end_to_bring(self, stream: str, *, compared: bool, ends: Mapping[str, int] | None) -> int:
        """Return the end of the numbers that a take-over brings to hubs; the arguments are those of ``waiting``."""
        end = self.compared_end(stream) if compared else SEQ_END
        return end if ends is None else min(end, ends.get(stream, 0))

    def complete_to(self) -> int | None:
        """Return the time up to which the copy has, or had, everything that the node took in; ns since 1970.

        Returns:
            None if that is unknown: the node has not said so of each stream that it copied last.
        """
        about = self.about
        if self.damage or about.is_partial or not about.offered:
            return None
        times = []
        for name in about.offered:
            mark = about.streams[name].mark if name in about.streams else None
            if mark is None or not self._has(name, mark[1]):
                return None
            times.append(mark[0])
        return min(times)

    @property
    def is_vouched(self) -> bool:
        """Return whether this copy and the hubs have all that the node acknowledged, also since it is away.

        That takes a node that acknowledges nothing alone, and a mark of each stream on its last connection. Before a
        mark, everything is sent that the node has and hubs lack: a copy that its disk, or an older image of it, has
        lost records of, is whole again. Nothing of it outlives the process: its disk may be older at the next start.
        """
        about = self.about
        return (
            self.is_sound
            and not about.is_partial
            and bool(about.offered)
            and self._whole.issuperset(about.offered)
            and all(self.compared_end(name) == SEQ_END and not self.lost(name) for name in about.offered)
        )

    def _has(self, stream: str, end: int) -> bool:
        # A damaged copy lacks records below its end. Those of which hubs were known to have them count as here.
        number = self.log.streams().get(stream)
        if number is None:
            return end == 0
        lost = [gap.first for gap in self.log.gaps(number) if gap.reason != GapReason.ABSENT]
        lost += [gap.first for gap in self.lost(stream)]
        return self.log.durable_end(number) >= end and all(first >= end for first in lost)

    def lost(self, stream: str) -> list[GapRange]:
        """Return the node's notices of records that it has lost, and that are not known to be anywhere else."""
        said = self.about.streams.get(stream)
        return [] if said is None else said.lost

    @property
    def explains_all(self) -> bool:
        """Return whether what records need beside them is durable."""
        return not (self._explains_more or self._saving.locked())

    async def save(self) -> None:
        """Store what was said beside the records, durably when this returns.

        Raises:
            OSError: it cannot be stored.
        """
        async with self._saving:
            if not self._is_stale:
                return
            self._is_stale = self._explains_more = False
            line = msgspec.json.encode(self.about)
            try:
                data = b"%08x %s\n" % (crc32c(line), line)
                await asyncio.to_thread(write_atomically, self._filesystem, self.path + _ABOUT, data)
            except OSError:
                self._is_stale = self._explains_more = True
                raise

    async def begin(self, epoch: int, session: LinkSession) -> bool:
        """Let a connection write the copy, durably under its epoch; an earlier connection ends.

        Returns:
            False if a later one has begun meanwhile.

        Raises:
            OSError: the epoch cannot be stored; nothing has changed.
        """
        before = self.about.epoch
        if epoch <= before:
            return False
        self.about.epoch, self._is_stale = epoch, True
        try:
            await self.save()
        except OSError:
            if self.about.epoch == epoch:
                self.about.epoch = before
            raise
        if self.about.epoch != epoch:
            return False
        if self.session is not None:
            message = f"a connection with epoch {epoch} has taken over"
            self.session.refuse(RefuseCode.IDENTITY_CONFLICT, message, "nothing, if the node connected again")
        self.session = session
        self.about.offered, self.about.is_partial = [], False
        self._promised, self._whole = set(), set()
        return True

    def end_of(self, stream: str) -> int:
        """Return the end of the stream's durable numbers here."""
        number = self.log.streams().get(stream)
        return 0 if number is None else self.log.durable_end(number)

    def declare(self, opening: LaneOpen) -> None:
        """Note what a lane's offer says of its stream."""
        known = self.about.streams.get(opening.stream)
        said = StreamFacts(list(opening.topics), opening.payload)
        if known is not None:
            said.mark, said.lost = known.mark, known.lost
        if opening.flags & LaneFlag.UNCOMPARED:
            number = self.log.streams().get(opening.stream)
            end = 0 if number is None else self.log.next_seq(number)
            said.compared_end = min(end, self.compared_end(opening.stream))
        if known != said:
            self.about.streams[opening.stream] = said
            self._is_stale = self._explains_more = True
        if opening.flags & LaneFlag.TWO_DISKS:
            self._promised.add(opening.stream)
        else:
            self.doubt(opening.stream)
        if opening.stream not in self.about.offered:
            self.about.offered.append(opening.stream)
            self._is_stale = True
        self.explain(opening.origins)

    def withdraw(self, stream: str) -> None:
        """Note that the node does not copy a stream any more."""
        if stream in self.about.offered:
            self.about.offered.remove(stream)
            self._is_stale = True

    def doubt(self, stream: str) -> None:
        """Vouch for a stream no more on this connection."""
        self._promised.discard(stream)
        self._whole.discard(stream)

    def note_refused(self) -> None:
        """Note that this node does not take all that the node offers."""
        self.about.is_partial = self._is_stale = True

    def explain(self, origins: Iterable[Origin] = (), clock: Clock | None = None) -> None:
        """Note what batches refer to."""
        for origin in origins:
            if self.about.origins.get(origin.number) != origin:
                self.about.origins[origin.number] = origin
                self._is_stale = self._explains_more = True
        if clock is not None and self.about.clocks.get(clock.boot) != clock:
            self.about.clocks[clock.boot] = clock
            self._is_stale = self._explains_more = True
        for kept in (self.about.origins, self.about.clocks):
            while len(kept) > EXPLAINED_MAX:
                del kept[next(iter(kept))]

    def mark(self, stream: str, mark: Mark) -> None:
        """Note a mark of the node when all that was appended is durable. It is stored with the next change, or by the
        next ``save``."""

        session = self.session

        def durable(error: BaseException | None) -> None:
            if error is None and (said := self.about.streams.get(stream)) is not None:
                said.mark, self._is_stale = (mark.time, mark.seq), True
                if self.session is session and stream in self._promised:
                    self._whole.add(stream)

        self.log.on_durable(durable)

    def note_lost(self, stream: str, gap: GapRange) -> None:
        """Note that the node has lost records, as far as the copy does not have them. It is stored with the next
        ``save``, before anything else is appended."""
        number, said = self.log.streams().get(stream), self.about.streams[stream]
        here = RangeSet() if number is None else self.log.ranges(number)
        lost = RangeSet((each.first, each.end) for each in said.lost)
        missing = [part for run in here.missing(gap.first, gap.end) for part in lost.missing(*run)]
        if missing:
            found = [*said.lost, *(GapRange(*part, gap.reason) for part in missing)]
            said.lost = sorted(found, key=lambda each: each.first)[:LOST_MAX]
            self._is_stale = self._explains_more = True

    def note_at_hubs(self, stream: str, numbers: RangeSet) -> None:
        """Note that every hub has records, by the node's word: a hub that acknowledges a notice of loss has none."""
        if lost := self.lost(stream):
            parts = [GapRange(*part, gap.reason) for gap in lost for part in numbers.missing(gap.first, gap.end)]
            self.about.streams[stream].lost, self._is_stale = parts[:LOST_MAX], True

    def forget(self, stream: str, numbers: RangeSet) -> None:
        """Let records go that are safe elsewhere."""
        number = self.log.streams().get(stream)
        if number is None:
            return
        end = self.log.next_seq(number)
        here = RangeSet((first, min(last, end)) for first, last in numbers if first < end)
        if here:
            self.log.release(number, here)
            for listener in list(self.listeners):
                listener()

    async def close(self) -> None:
        """End the connection, and close the log."""
        if self.session is not None:
            self.session.refuse(RefuseCode.UNAVAILABLE, "the node stops", "nothing: the peer connects again by itself")
        with contextlib.suppress(OSError, LogError):
            await self.log.durable()  # so that the last marks are noted
        with contextlib.suppress(OSError):
            await self.save()
        try:
            await asyncio.to_thread(self.log.close)
        except OSError as error:
            logger.warning("the copy in %s was not closed well: %s", self.path, error)

    def remove(self) -> None:
        """Delete the files of a closed copy. Blocks on the disk.

        Raises:
            OSError: some are left; the next start opens the copy again.
        """
        for name in self._filesystem.list_names(self.path):
            self._filesystem.remove(os.path.join(self.path, name))
        self._filesystem.remove_directory(self.path)
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.remove(self.path + _ABOUT)


def _read_about(filesystem: FileSystem, path: str) -> _About:
    """Read the file beside a copy.

    Raises:
        FileNotFoundError: there is none.
        OSError, ValueError, msgspec.MsgspecError: it is damaged.
    """
    if filesystem.size(path) > ABOUT_BYTES_MAX:
        raise ValueError(f"it is longer than {ABOUT_BYTES_MAX} bytes")
    checksum, _, line = filesystem.read(path).removesuffix(b"\n").partition(b" ")
    if checksum != b"%08x" % crc32c(line):
        raise ValueError("its checksum does not match")
    return msgspec.json.decode(line, type=_About)


class Copies:
    """All copies of one node.

    Args:
        folder: ``<data_dir>/pair``.
        budget_bytes: maximum bytes of each copy.
        own: name and log id of the node itself.
        peer: name of the only node, of the same tenant, whose log may be copied; None for the first one that connects.
        post: runs a callback of another thread on the event loop's thread.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        budget_bytes: int,
        own: tuple[NodeName, int],
        *,
        wall_clock: Callable[[], int],
        post: Callable[[Callable[[], None]], None],
        peer: str | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._own = own
        self.peer = peer
        """Name of the peer; None while no node has brought a copy."""
        self._is_peer_set = peer is not None
        self.wall_clock = wall_clock
        self._post = post
        # No batches in memory: nothing reads a copy while its node is well. No pause between commits: the node has
        # gathered its records already, and devices may wait for both.
        self._settings = LogSettings(
            segment_bytes=min(16 << 20, budget_bytes // 8),
            budget_bytes=budget_bytes,
            tail_bytes=0,
            commit_interval_s=0.0,
        )
        self._lock = asyncio.Lock()
        self.is_encrypted = is_sealed(filesystem)
        """True if the disk encrypts what is written to it."""
        self.open: dict[str, Copy] = {}
        """Folder's name -> copy; of one log the newest last."""
        self.unopened: dict[str, str] = {}
        """Folder's name of a copy that cannot be opened -> the reason."""

    async def start(self) -> None:
        """Open the copies that exist. One that cannot be opened is logged, and left as it is."""
        async with self._lock:
            if not self._is_peer_set:
                self.peer = await asyncio.to_thread(self._read_peer)
            for name in sorted(await asyncio.to_thread(self._names), key=_place):
                try:
                    self.open[name] = await asyncio.to_thread(self._load, name, None)
                except (LogError, OSError) as error:
                    self.unopened[name] = str(error)
                    logger.error("the copy in %s cannot be opened: %s", os.path.join(self._folder, name), error)

    def _read_peer(self) -> str | None:
        path = os.path.join(self._folder, PEER_FILE)
        try:
            if self._filesystem.size(path) <= PEER_BYTES_MAX:
                return self._filesystem.read(path).decode().strip() or None
            reason = f"longer than {PEER_BYTES_MAX} bytes"
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            reason = str(error)
        # Empty: no node has this name, and the next one that connects must not become the peer by a damaged disk.
        logger.error("%s cannot be read (%s): no node can write a copy. Set `pair.node` to its name", path, reason)
        return ""

    def _keep_peer(self, name: str) -> None:
        self._filesystem.make_directory(self._folder)
        write_atomically(self._filesystem, os.path.join(self._folder, PEER_FILE), f"{name}\n".encode())

    async def _admit(self, owner: NodeName) -> None:
        """Admit the peer alone: what is copied goes to hubs under the name that it came with.

        Raises:
            LinkRefused: it is another node, or the name of the first one cannot be stored.
        """
        tenant = self._own[0].tenant
        if owner.tenant != tenant or self.peer not in (None, owner.edge):
            path = os.path.join(self._folder, PEER_FILE)
            why = "" if self._is_peer_set else f", the first that connected ({path})"
            which = f"{tenant}/{self.peer}{why}" if self.peer else f"another node of tenant {tenant}"
            advice = f"if {owner.edge} is to take its place, set `pair.node: {owner.edge}` at {self._own[0].edge}"
            if owner.tenant != tenant:
                advice = "give both nodes of a pair the same `tenant`"
            message = f"{owner} is not the peer of {self._own[0]}, which is {which}"
            raise LinkRefused(RefuseCode.UNAUTHORISED, message, advice)
        if self.peer is None:
            try:
                await asyncio.to_thread(self._keep_peer, owner.edge)
            except OSError as error:
                raise _not_kept(error) from error
            self.peer = owner.edge

    def _names(self) -> list[str]:
        if not self._filesystem.exists(self._folder):
            return []
        return [name for name in self._filesystem.list_names(self._folder) if COPY_NAME.fullmatch(name)]

    def _load(self, name: str, owner: NodeName | None) -> Copy:
        path = os.path.join(self._folder, name)
        self._filesystem.make_directory(self._folder)
        return Copy.load(
            self._filesystem, path, self._settings, wall_clock=self.wall_clock, post=self._post, owner=owner
        )

    async def close(self) -> None:
        """Close all copies."""
        async with self._lock:
            for copy in self.open.values():
                await copy.close()
            self.open.clear()

    async def take(self, hello: Hello) -> Copy:
        """Return the copy that a node continues, a new one if there is none.

        Raises:
            LinkRefused: it is not the peer, or there is no place for another copy.
        """
        owner = NodeName(hello.tenant, hello.edge)
        if owner == self._own[0] or hello.log_id == self._own[1]:
            raise LinkRefused(
                RefuseCode.IDENTITY_CONFLICT,
                f"{owner} with log {format_log_id(hello.log_id)} is this node itself, or has its name",
                "change `node` of one of them, give each a data directory, and let `pair.peer` lead to the other node",
            )
        async with self._lock:
            await self._admit(owner)
            ours = [(name, each) for name, each in self.open.items() if each.log.log_id == hello.log_id]
            if ours and ours[-1][1].log.failed is not None:
                ours[-1] = ours[-1][0], await self._open_again(*ours[-1])
            if ours and ours[-1][1].owner == owner and ours[-1][1].is_sound:
                return ours[-1][1]
            taken = await asyncio.to_thread(self._names)
            if len(taken) >= COPIES_MAX:
                raise LinkRefused(
                    RefuseCode.OVERLOADED,
                    f"this node keeps {len(taken)} copies already, and hubs lack records of them: {', '.join(taken)}",
                    "let their records reach the hub with `weft edge take-over`; copies that hubs have leave by "
                    "themselves",
                )
            base = format_log_id(hello.log_id)
            number = max((_place(name)[1] for name in taken if name.startswith(base)), default=0) + 1
            name = base if number == 1 else f"{base}-{number}"
            try:
                copy = await asyncio.to_thread(self._load, name, owner)
            except (LogError, OSError) as error:
                raise LinkRefused(
                    RefuseCode.UNAVAILABLE, f"the copy cannot be kept: {error}", "look at the peer's disk"
                ) from error
            copy.about.epoch = max((each.about.epoch for _, each in ours), default=0)
            if ours:
                logger.warning(
                    "the copy in %s is damaged, or its node has another name now: %s continues in %s, and sends what "
                    "no hub has again",
                    ours[-1][1].path,
                    owner,
                    copy.path,
                )
            self.open[name] = copy
        return copy

    async def _open_again(self, name: str, failed: Copy) -> Copy:
        """Open a copy whose disk has failed again: only recovery knows what the disk has."""
        await failed.close()
        try:
            self.open[name] = copy = await asyncio.to_thread(self._load, name, None)
        except (LogError, OSError) as error:
            raise LinkRefused(
                RefuseCode.UNAVAILABLE, f"the copy cannot be opened: {error}", "look at the peer's disk"
            ) from error
        return copy

    async def tidy(self, used: Container[str] = ()) -> None:
        """Store what was said lately, and remove earlier copies of which hubs have everything, but those in use."""
        async with self._lock:
            newest = {copy.log.log_id: copy for copy in self.open.values()}
            present = {id(copy) for copy in newest.values() if copy.session is not None}
            for name, copy in list(self.open.items()):
                try:
                    await copy.save()
                    # A copy of a log that is gone for good goes only when another log has taken its place, or needs it.
                    is_needed = present or len(self.open) >= COPIES_MAX
                    if is_needed and id(copy) not in present and name not in used and not copy.waiting():
                        del self.open[name]
                        await copy.close()
                        await asyncio.to_thread(copy.remove)
                        logger.info("hubs have everything of the copy in %s: it is removed", copy.path)
                except OSError as error:
                    logger.warning("the copy in %s: %s", copy.path, error)


def _place(name: str) -> tuple[str, int]:
    found = COPY_NAME.fullmatch(name)
    return (name, 0) if found is None else (found[1], int(found[2] or 1))


# The connection of a node that writes its copy: the receiver's handler, in place of a hub's.


class CopyLink:
    """One connection (``replication.runner.LinkHandler``).

    It writes from its first data, gap or mark on: a node that is refused, or sees itself that it is an old copy, ends
    no other connection.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._session: LinkSession
        self._copy: Copy | None = None
        self._epoch: int | None = None
        self._has_begun = False
        self._lanes: dict[int, LaneOpen] = {}
        """Number of an open lane -> its offer."""
        self._clocks: list[Clock] = []
        self._origins: list[Origin] = []
        """Clocks and origins that came before it began."""
        self._is_partial = False
        self._delayed: list[Callable[[], None]] = []
        """Work of this message that waits until the disk has what explains its records."""
        self._hello: Hello

    def connected(self, session: LinkSession) -> None:
        """Take the session of the connection."""
        self._session = session

    async def open(self, hello: Hello) -> None:
        """Find or make the copy of the node's log.

        Raises:
            LinkRefused: there is no place for one, or the node is this one.
        """
        self._hello = hello
        self._copy = await self._copies.take(hello)

    async def open_lane(self, opening: LaneOpen) -> None:
        """Answer with all numbers below the copy's end: it is only continued, and the node has the rest.

        Raises:
            LinkRefused: the log was copied with an epoch at least as high, so the node is an old copy or a clone.
        """
        copy, hello = self._copy_in_use(), self._hello
        lane = Lane(opening.tenant, opening.edge, opening.log_id, opening.stream)
        if opening.flags & (LaneFlag.RELAY | LaneFlag.PARTIAL) or lane != (*_named(hello), opening.stream):
            message = f"lane {lane} is not the node's own: a pair keeps copies of each other's lanes"
            self._session.close_lane(opening.lane, RefuseCode.UNAUTHORISED, message, "run the same release at both")
            return
        if opening.stream not in copy.about.streams and len(copy.about.streams) + len(self._lanes) >= STREAMS_MAX:
            self._is_partial = True
            if self._has_begun:
                copy.note_refused()
            message = f"the copy has {STREAMS_MAX} streams, the most that it may have"
            self._session.close_lane(opening.lane, RefuseCode.OVERLOADED, message, "carry fewer streams")
            return
        end = copy.end_of(opening.stream)
        if opening.epoch != self._epoch:
            if self._epoch is not None or not 0 <= opening.epoch - copy.about.epoch - 1 < EPOCH_STEP_MAX:
                of, claimed = f"{copy.owner}, log {format_log_id(hello.log_id)}", offered_end(opening.ranges)
                raise LinkRefused(
                    RefuseCode.IDENTITY_CONFLICT,
                    *taken_before(of, opening.stream, held=(copy.about.epoch, end), claimed=(opening.epoch, claimed)),
                )
            self._epoch = opening.epoch
        self._lanes[opening.lane] = opening
        if self._has_begun:
            copy.declare(opening)
        self._session.lane_opened(opening.lane, RangeSet([(0, end)]))

    def _copy_in_use(self) -> Copy:
        copy = self._copy
        if copy is None or (self._has_begun and copy.session is not self._session):
            raise self._other_writes()
        return copy

    @staticmethod
    def _other_writes() -> LinkRefused:
        return LinkRefused(RefuseCode.UNAVAILABLE, "another connection writes the copy", "nothing: that one continues")

    def _do(self, work: Callable[[], None]) -> None:
        """Do work in the order of the frames, once this connection writes and the disk has what explains records."""
        if self._delayed or not self._has_begun or not self._copy_in_use().explains_all:
            self._delayed.append(work)
        else:
            work()

    async def _settle(self) -> None:
        """Do what was delayed.

        Raises:
            LinkRefused: another connection writes, or the disk takes nothing.
        """
        copy = self._copy_in_use()
        if not self._delayed:
            return
        try:
            if not self._has_begun:
                if self._epoch is None or not await copy.begin(self._epoch, self._session):
                    raise self._other_writes()
                self._has_begun = True
                if self._is_partial:
                    copy.note_refused()
                for opening in self._lanes.values():
                    copy.declare(opening)
                copy.explain(self._origins)
                for clock in self._clocks:
                    copy.explain(clock=clock)
            await copy.save()
        except OSError as error:
            raise _not_kept(error) from error
        delayed, self._delayed = self._delayed, []
        for work in delayed:
            self._copy_in_use()
            work()

    def close_lane(self, lane: int, refusal: str = "") -> None:
        """Forget a lane that its sender closed, or of which a record was refused."""
        opening = self._lanes.pop(lane, None)
        if opening is not None and self._has_begun and not refusal:
            self._copy_in_use().withdraw(opening.stream)

    def add_origins(self, frame: LaneOrigins) -> None:
        """Keep what batches that follow refer to."""
        if self._has_begun:
            self._copy_in_use().explain(frame.origins)
        elif frame.lane in self._lanes:
            self._origins = [*self._origins, *frame.origins][-EXPLAINED_MAX:]

    async def clock(self, clock: Clock) -> None:
        """Keep what corrects the times of batches."""
        if clock.log_id != self._hello.log_id:
            return
        if self._has_begun:
            self._copy_in_use().explain(clock=clock)
        else:
            self._clocks = [*self._clocks, clock][-EXPLAINED_MAX:]

    def data(self, lane: int, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        """Append batches, and acknowledge them once they are durable.

        Raises:
            LinkRefused: the disk takes nothing any more.
        """
        if lane in self._lanes:
            copied = [(header, bytes(batch)) for header, batch in batches]
            self._do(lambda: self._append(lane, copied))

    def _append(self, lane: int, batches: list[tuple[BatchHeader, bytes]]) -> None:
        copy, opening = self._copy_in_use(), self._lanes.get(lane)
        if opening is None:
            return
        try:
            # Only once ``explains_all``: a record that the disk has can be explained, also after a power cut.
            copy.log.append_stored(opening.stream, batches)
        except LogFull as error:
            advice = "give `weft edge take-over` at the peer, which frees what hubs have, or raise pair.budget there"
            self._close(lane, RefuseCode.OVERLOADED, f"the copy is full: {error}", advice)
            return
        except ValueError as error:
            self._close(lane, RefuseCode.PROTOCOL_ERROR, str(error), "run the same release at both")
            return
        except (LogError, OSError) as error:
            raise _not_kept(error) from error
        numbers = RangeSet((header.base_seq, header.end_seq) for header, _ in batches)
        self._acknowledge(copy, lane, numbers)

    def _acknowledge(self, copy: Copy, lane: int, numbers: RangeSet) -> None:
        """Acknowledge numbers when all that was appended is durable."""

        def durable(error: BaseException | None) -> None:
            if error is None:
                self._session.acknowledge(lane, numbers)

        copy.log.on_durable(durable)

    def _close(self, lane: int, code: RefuseCode, message: str, advice: str) -> None:
        stream = self._lanes.pop(lane).stream
        self._copy_in_use().doubt(stream)
        self._session.close_lane(lane, code, f"stream {stream}: {message}", advice)

    async def gap(self, lane: int, gap: GapRange) -> None:
        """Let records go that every hub has, or that the node has dropped by its own rules. Losses of the node are no
        reason to forget anything here; those that the copy cannot make good bound what it says of itself."""
        if lane in self._lanes:
            self._do(lambda: self._forget(lane, gap))
            await self._settle()

    def _forget(self, lane: int, gap: GapRange) -> None:
        copy, opening = self._copy_in_use(), self._lanes.get(lane)
        if opening is None:
            return
        numbers = RangeSet([(gap.first, gap.end)])
        if gap.reason == GapReason.ABSENT:
            copy.note_at_hubs(opening.stream, numbers)
            copy.forget(opening.stream, numbers)
        else:
            copy.note_lost(opening.stream, gap)
        self._acknowledge(copy, lane, numbers)

    def marks(self, time: int, lanes: list[tuple[int, int]]) -> None:
        """Keep the node's marks, which a take-over repeats."""
        self._do(lambda: self._mark(time, lanes))

    def _mark(self, time: int, lanes: list[tuple[int, int]]) -> None:
        copy = self._copy_in_use()
        for lane, seq in lanes:
            if (opening := self._lanes.get(lane)) is not None:
                copy.mark(opening.stream, Mark(time, seq))

    def last_words(self, time: int, lanes: list[tuple[int, int]], renamed_to: str) -> None:  # noqa: ARG002
        """Keep them as marks: only the node itself can say to a hub that it has stopped."""
        self.marks(time, lanes)

    async def room(self) -> None:
        """Do what was delayed, and wait while the disk is behind with what came."""
        await self._settle()
        copy = self._copy
        if copy is not None and copy.log.pending_bytes > PENDING_BYTES_MAX:
            with contextlib.suppress(LogError):
                await copy.log.durable()

    async def canary(self, canary: Canary) -> None:
        """Prove that the disk takes what is sent."""
        copy = self._copy_in_use()
        copy.log.on_durable(lambda error: None if error else self._session.prove(canary.number, 0.0))

    async def down(self, frame: DownOpen | Outcomes) -> None:
        """Pass over words about messages of hubs."""

    def config_state(self, state: ConfigState) -> None:
        """Pass over words about configurations."""

    def pull_state(self, state: PullState) -> None:
        """Pass over words about pulls."""

    def report(self, report: NodeReport | PairReport) -> None:
        """Pass over reports of the node's disk."""

    def closed(self, reason: str) -> None:
        """Note that the node is away."""
        copy = self._copy
        if copy is not None and self._has_begun and copy.session is self._session:
            copy.session = None
            logger.info("%s, whose copy is in %s, is away: %s", copy.owner, copy.path, reason)


def _not_kept(error: Exception) -> LinkRefused:
    return LinkRefused(RefuseCode.UNAVAILABLE, f"the copy cannot be kept: {error}", "look at the peer's disk")


def _named(hello: Hello) -> tuple[str, str, int]:
    return hello.tenant, hello.edge, hello.log_id
