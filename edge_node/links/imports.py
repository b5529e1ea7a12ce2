"""Imported logs: records on an earlier disk of this node, on their way to the hubs under that disk's log id.

Each is opened beside the node's log, and the node's links carry it over connections of their own, with the epochs and
high watermarks from its folder. So its records reach the hubs once, in their original lanes, and a hub that refuses
them refuses nothing else. Nothing is ever appended to such a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from weft.config.models import EdgeConfig
from weft.edge_node.check.streams import Flow, carried_streams, segment_bytes, streams_of
from weft.edge_node.links.links import Links
from weft.edge_node.part import Part
from weft.edge_node.streams import STREAMS_THAT_STAY
from weft.edge_node.timing import clock_reader, wall_clock
from weft.protocols.lane import NodeName
from weft.replication.events import LinkState
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log import LogError, LogSettings, SegmentLog
from weft.storage.segment_log.encryption import disk_of

# Places of imported logs: data directories of an earlier disk, which ``weft edge import`` put into this node's.
#
# ``<data_dir>/imported/<log id>`` is a log that the node's links still have to bring to the hubs, and ``<log
# id>.done`` one that the hubs have completely.
#
# Appended to the new log, the records would get new names, and those that a hub has would be there twice. The rename
# of the folder is the only state: a node that is killed asks the hubs again.

FOLDER = "imported"
DONE = ".done"
PART = ".part"
"""Suffix while the files are still being copied: the node skips it."""
_NAME = re.compile(r"[0-9a-f]{16}")


def folder(data_dir: str) -> str:
    """Return the folder of a node's imported logs; it need not exist."""
    return os.path.join(data_dir, FOLDER)


def waiting(data_dir: str) -> list[str]:
    """Return the log ids of the imports that hubs do not have yet, sorted."""
    return sorted(name for name in _names(data_dir) if _NAME.fullmatch(name))


def done(data_dir: str) -> list[str]:
    """Return the log ids of the imports that hubs have, sorted. Their folders can be deleted."""
    names = (name.removesuffix(DONE) for name in _names(data_dir) if name.endswith(DONE))
    return sorted(name for name in names if _NAME.fullmatch(name))


def _names(data_dir: str) -> list[str]:
    try:
        return os.listdir(folder(data_dir))
    except (FileNotFoundError, NotADirectoryError):
        return []


logger = logging.getLogger(__name__)

OPEN_RETRY_S = 60.0
"""Interval at which a log that could not be opened is tried again."""
LOOK_INTERVAL_S = 1.0


@dataclass
class _Import:
    """A log that hubs do not have completely yet."""

    directory: str
    trouble: str = ""
    retry_at: float = 0.0
    log: SegmentLog | None = None
    links: Links | None = None
    left_over: dict[str, int] = field(default_factory=dict)
    """Stream -> its records that no link of the node carries. They stay in the folder."""

    @property
    def waiting(self) -> int:
        """Return the number of records not known to be at a hub; records of several links count for each."""
        return sum(records for records, _ in self.links.waiting().values()) if self.links is not None else 0


class Imports(Part):
    """The imported logs of a running node. ``start`` and ``close`` once each; event loop's thread.

    Args:
        post: runs a callback of another thread on the event loop's thread.
    """

    name = "imports"

    def __init__(
        self,
        config: EdgeConfig,
        software: str,
        post: Callable[[Callable[[], None]], None],
        *,
        filesystem: FileSystem | None = None,
    ) -> None:
        self._config = config
        self._software = software
        self._post = post
        self._filesystem = filesystem or disk_of(config.data_dir)
        self._imports: dict[str, _Import] = {}
        self._now = asyncio.get_running_loop().time
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to look for imported logs, now and whenever a command brings one."""
        self._task = asyncio.create_task(self._run(), name="imports")

    async def close(self) -> None:
        """Stop. Remaining records are brought to the hubs after the node's next start."""
        self._stop.set()
        if self._task is not None:
            # Not cancelled: a log that is being opened in a thread has to be closed again.
            await asyncio.wait([self._task])
        for known in self._imports.values():
            await self._close(known)

    async def _run(self) -> None:
        while not self._stop.is_set():
            try:
                await self._look()
            except Exception:
                # A fault in this code must not stop a node that accepts records.
                logger.exception("an imported log could not be handled")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), LOOK_INTERVAL_S)

    async def _look(self) -> None:
        """Start logs that were put into the folder, and set aside logs that the hubs have completely."""
        for log_id in waiting(self._config.data_dir):
            directory = os.path.join(folder(self._config.data_dir), log_id)
            known = self._imports.setdefault(log_id, _Import(directory))
            if known.log is None and self._now() >= known.retry_at and not self._stop.is_set():
                await self._open(log_id, known)
        for log_id, known in list(self._imports.items()):
            if known.links is not None and not known.links.waiting() and not known.left_over:
                await self._finish(log_id, known)

    def facts(self) -> Mapping[str, Any]:
        """Return the section of the status: every import by its log id."""
        facts: dict[str, Any] = {
            log_id: {
                "state": "waiting" if known.trouble or known.left_over else "sending",
                "directory": known.directory,
                "pending_records": known.waiting,
                "not_carried": dict(known.left_over),
                "trouble": self._trouble(known),
            }
            for log_id, known in self._imports.items()
        }
        for log_id in done(self._config.data_dir):
            directory = os.path.join(folder(self._config.data_dir), log_id + DONE)
            facts[log_id] = {
                "state": "done",
                "directory": directory,
                "pending_records": 0,
                "not_carried": {},
                "trouble": "",
            }
        return {"imported": facts}

    def _trouble(self, known: _Import) -> str:
        if known.trouble or known.links is None:
            return known.trouble
        if known.left_over:
            names = ", ".join(f"{name} ({count} records)" for name, count in known.left_over.items())
            return f"no link carries {names}. Name these streams in the configuration, with a link that carries them"
        late = {link for link, _ in known.links.waiting()}
        return "; ".join(
            f"link {link.name}: {link.last_error}"
            for link in known.links.statuses
            if link.name in late and link.state is not LinkState.CONNECTED and link.last_error
        )

    async def _open(self, log_id: str, known: _Import) -> None:
        try:
            log = await asyncio.to_thread(self._open_log, known.directory)
        except (LogError, OSError) as error:
            known.trouble, known.retry_at = str(error), self._now() + OPEN_RETRY_S
            logger.error("the imported log in %s cannot be opened: %s", known.directory, error)
            return
        known.trouble, known.log = "", log
        config, known.left_over = _carrying(self._config, known.directory, log)
        known.links = Links(config, log, wall_clock=wall_clock, software=self._software)
        known.links.start()
        held = sum(log.ranges(number).count() for number in log.streams().values())
        logger.info("the imported log %s holds %d records; the links bring the hubs what they lack", log_id, held)

    def _open_log(self, directory: str) -> SegmentLog:
        config = self._config
        # Only records that hubs have may be deleted from it: its budget is its present size, with a little room for the
        # writes at its opening.
        segment = segment_bytes(config)
        taken = sum(
            self._filesystem.size(os.path.join(directory, name))
            for name in os.listdir(directory)
            if os.path.isfile(os.path.join(directory, name))
        )
        return SegmentLog.open(
            directory,
            LogSettings(
                segment_bytes=segment, budget_bytes=max(config.disk.budget_bytes, 2 * taken + 8 * segment), tail_bytes=0
            ),
            wall_clock=wall_clock,
            clock_reading=clock_reader(),
            random_bits=random.SystemRandom().getrandbits,
            post=self._post,
            owner=NodeName(config.tenant, config.node),
        )

    async def _finish(self, log_id: str, known: _Import) -> None:
        await self._close(known)
        target = known.directory + DONE
        try:
            await asyncio.to_thread(self._set_aside, known.directory, target)
        except OSError as error:
            known.trouble, known.retry_at = f"{target}: {error.strerror or error}", self._now() + OPEN_RETRY_S
            logger.error("the imported log %s is at the hubs, but cannot be set aside: %s", log_id, error)
            return
        del self._imports[log_id]
        logger.info("the hubs have everything of the imported log %s: %s can be deleted", log_id, target)

    def _set_aside(self, directory: str, target: str) -> None:
        self._filesystem.rename(directory, target)
        self._filesystem.sync_directory(os.path.dirname(target))

    async def _close(self, known: _Import) -> None:
        links, known.links = known.links, None
        log, known.log = known.log, None
        if links is not None:
            await links.close()
        if log is not None:
            try:
                await asyncio.to_thread(log.close)
            except OSError as error:
                # Nothing was appended, so an error here loses nothing.
                logger.warning("the imported log in %s was not closed well: %s", known.directory, error)


def _carrying(config: EdgeConfig, directory: str, log: SegmentLog) -> tuple[EdgeConfig, dict[str, int]]:
    """Return the configuration with which the links carry ``log``, and the number of records that no link carries.

    Only streams that the log knows: a link would declare others in it.
    """
    known, flow = log.streams(), Flow(config)
    # The properties that a derived stream has from its inputs are written out, as the log may lack those streams.
    streams = {
        name: msgspec.structs.replace(
            stream, from_=flow.patterns(name), from_stream=(), functions=(), raw=None, payload=flow.payload(name)
        )
        for name, stream in streams_of(config).items()
        if name in known
    }
    links = {}
    for name, link in config.links.items():
        carried = tuple(stream for stream in carried_streams(link, config) if stream in streams)
        if carried:
            links[name] = msgspec.structs.replace(link, streams=carried)
    carried_by_any = {stream for link in links.values() for stream in link.streams or ()}
    stays = STREAMS_THAT_STAY | {name for name, stream in streams_of(config).items() if not stream.replicate}
    left_over = {
        name: count
        for name, number in known.items()
        if name not in carried_by_any | stays and (count := log.ranges(number).count())
    }
    return msgspec.structs.replace(config, data_dir=directory, streams=streams, links=links), left_over
