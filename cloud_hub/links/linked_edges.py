"""Edges that are linked to the hub processes of a store, for one that is asked about all of them.

Each process keeps an object of its own with the edges that are linked to it, with the lost records that edges have told
it of, and with their last reports. It writes the object again when they changed, at most each ten seconds, for reports
alone each minute, and not at all while no other process is there. Only a process that is asked reads the others'
objects. What they say is a hint for people: no log, no claim and no right depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from weft.bounds.background import BackgroundTask
from weft.cloud_hub.api.edge_reports import EdgeReport, is_later
from weft.cloud_hub.api.edges import Linked, LinksElsewhere
from weft.cloud_hub.api.views import LOST_LISTED_MAX, View
from weft.config.log_lines.repeats import Repeats, left_out
from weft.protocols.fields import Nanoseconds
from weft.protocols.lane import NodeName, valid_name
from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreError
from weft.storage.presence.nodes import NodeEntry

_logger = logging.getLogger(__name__)
WRITE_S = 10.0
"""Shortest time between two writes."""
REWRITE_LOOKS = 30
"""Number of looks after which it is written though nothing changed: an object that was removed comes again."""
REPORT_LOOKS = 6
"""Number of looks between two writes for reports alone: those of a large fleet change all the time."""
CLEAN_LOOKS = 360
"""Number of looks between two removals of objects that processes which were killed have left."""
READ_AGE_S = 5.0
"""Maximum age of what a request gets."""
EDGES_MAX = 65_536
"""Maximum number of edges in an object; further ones are left out."""
FUNCTIONS_BYTES_MAX = 4 << 20
"""Encoded bytes of all functions in an object. Each edge that has some gets an equal share."""
OBJECT_BYTES_MAX = 8 << 20
DECODED_BYTES_MAX = 32 << 20
SOFTWARE_CHARACTERS_MAX = 64
LISTED_MAX = 10_000
READS_AT_ONCE = 16
_LOG = re.compile("[0-9a-f]{16}").fullmatch


class LostLane(msgspec.Struct, frozen=True, array_like=True):
    """Acknowledged records of a lane that the hub lacks, as the edge said when it linked."""

    stream: str
    log: str
    """Id of the edge's log, 16 hexadecimal digits."""
    shard: int
    records: int
    first_seq: int


class LinkedEdge(msgspec.Struct, frozen=True, array_like=True):
    """An edge that is linked to a process, or was when it told of lost records or of itself."""

    tenant: str
    edge: str
    since: Nanoseconds
    """Moment of the connection by the clock of the process; 0 without a link."""
    software: str
    lost: tuple[LostLane, ...] = ()
    report: EdgeReport | None = None


_DECODER = msgspec.msgpack.Decoder(list[LinkedEdge])
Told = dict[NodeName, LinkedEdge]
"""Entries of an object."""


class LinkedEdges:
    """The linked edges of the other processes, for one that tells them of its own.

    Args:
        node_id: name of its object, that of its entry in ``nodes/``.
        own: its linked edges at present.
        lost: the lost records that it knows of, as ``lost_views`` has them.
        others: entries of the other processes that are there.
        reports: what edges have said to it of themselves.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        node_id: str,
        own: Callable[[], Mapping[NodeName, Linked]],
        lost: Callable[[], Sequence[View]],
        others: Callable[[], Sequence[NodeEntry]],
        *,
        reports: Callable[[], Mapping[NodeName, EdgeReport]],
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._own, self._lost, self._others = store, own, lost, others
        self._reports = reports
        self._written_reports: Mapping[NodeName, EdgeReport] = {}
        self._monotonic = monotonic
        self._node_id, self._key = node_id, hub_keys.linked_key(node_id)
        self._etag: str | None = None
        self._written: Told | None = None
        self._looks = 0
        self._known = LinksElsewhere({}, [])
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._repeats = Repeats()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Write in the background."""
        self._task.start(self._run(), name="linked-edges")

    async def close(self) -> None:
        """Stop, and remove the object."""
        if await self._task.close() and self._etag is not None:
            try:
                await self._store.delete(self._key)
            except StoreError as error:
                _logger.info("%s stays in the store until others remove it: %s", self._key, error)

    async def elsewhere(self, age_s: float = READ_AGE_S) -> LinksElsewhere:
        """Return the edges that are linked to other processes, as of so many seconds ago at most."""
        async with self._reading:
            now = self._monotonic()
            if self._read_at is None or now - self._read_at >= age_s:
                self._known, self._read_at = await self._read(), now
            return self._known

    async def _read(self) -> LinksElsewhere:
        found, unknown, lost = dict[NodeName, Linked](), list[str](), list[View]()
        reports = dict[NodeName, EdgeReport]()
        others = list(self._others())
        for at in range(0, len(others), READS_AT_ONCE):
            part = others[at : at + READS_AT_ONCE]
            for entry, told in zip(part, await asyncio.gather(*map(self._read_one, part)), strict=True):
                if told is None:
                    unknown.append(entry.name)
                    continue
                for each in told:
                    name = NodeName(each.tenant, each.edge)
                    lost += [{"tenant": each.tenant, "edge": each.edge, **msgspec.structs.asdict(lane)}
                             for lane in each.lost]  # fmt: skip
                    if each.report is not None and is_later(each.report, reports.get(name)):
                        reports[name] = each.report
                    if each.since and (name not in found or found[name].since < each.since):  # it may just have moved
                        found[name] = Linked(each.since, each.software, None, entry.name)
        return LinksElsewhere(found, unknown, reports, lost[:LOST_LISTED_MAX])

    async def _read_one(self, entry: NodeEntry) -> list[LinkedEdge] | None:
        try:
            data = (await self._store.get(hub_keys.linked_key(entry.id))).data
            return await asyncio.to_thread(_decode, data)
        except (NotFound, StoreError, msgspec.MsgspecError, zlib.error, ValueError):
            return None

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except StoreError as error:
                count = self._repeats.say("write", self._monotonic())
                if count is not None:
                    _logger.warning("other processes do not see which edges are linked: %s%s", error, left_out(count))
            except Exception:  # without this task, the edges would seem to be linked for good
                _logger.exception("linked edges could not be stored")
            await asyncio.sleep(WRITE_S)

    async def look(self) -> None:
        """Write the object if the edges changed, or another process has come.

        Raises:
            StoreError: the store did not answer.
        """
        if not self._others():
            return
        told, reports = _told(self._own(), self._lost()), self._reports()
        is_due = self._looks % REPORT_LOOKS == 0 and reports != self._written_reports
        if told != self._written or is_due or self._looks % REWRITE_LOOKS == 0:
            await self._write(await asyncio.to_thread(_encode, told, reports))
            self._written, self._written_reports = told, reports
        if self._looks % CLEAN_LOOKS == 0:
            await self._clean()
        self._looks += 1

    async def _write(self, data: bytes) -> None:
        try:
            if self._etag is None:
                self._etag = await self._store.create(self._key, data)
            else:
                self._etag = await self._store.swap(self._key, data, self._etag)
        except (AlreadyExists, PreconditionFailed):  # an earlier attempt, or it was removed: no other process writes it
            await self._store.delete(self._key)
            self._etag = await self._store.create(self._key, data)

    async def _clean(self) -> None:
        """Remove objects of processes that have no entry any more."""
        left = await self._store.list(hub_keys.LINKED, limit=LISTED_MAX)
        there = {each.key.rpartition("/")[2] for each in await self._store.list(hub_keys.NODES, limit=LISTED_MAX)}
        for each in left:
            if each.key.rpartition("/")[2] not in {*there, self._node_id}:
                await self._store.delete(each.key)


def _told(linked: Mapping[NodeName, Linked], lost: Sequence[View]) -> Told:
    told = {
        name: LinkedEdge(*name, link.since, link.software[:SOFTWARE_CHARACTERS_MAX])
        for name, link in list(linked.items())[:EDGES_MAX]
    }
    lanes: dict[NodeName, list[LostLane]] = {}
    for each in lost:
        of = lanes.setdefault(NodeName(each["tenant"], each["edge"]), [])
        of.append(LostLane(*(each[field] for field in LostLane.__struct_fields__)))
    for name, found in lanes.items():
        told[name] = msgspec.structs.replace(told.get(name) or LinkedEdge(*name, 0, ""), lost=tuple(found))
    return told


def _encode(told: Told, reports: Mapping[NodeName, EdgeReport]) -> bytes:
    share = FUNCTIONS_BYTES_MAX // max(1, sum(bool(each.report.functions) for each in reports.values()))
    told = dict(told)
    for name, report in reports.items():
        if name in told or len(told) < EDGES_MAX:
            known = told.get(name) or LinkedEdge(*name, 0, "")
            told[name] = msgspec.structs.replace(known, report=report.within(share))
    return zlib.compress(msgspec.msgpack.encode(list(told.values())), 1)


def _decode(data: bytes) -> list[LinkedEdge]:
    """Return what a process tells.

    Raises:
        MsgspecError, zlib.error, ValueError: it holds something else.
    """
    if len(data) > OBJECT_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes")
    inflate = zlib.decompressobj()
    plain = inflate.decompress(data, DECODED_BYTES_MAX)
    if inflate.unconsumed_tail:
        raise ValueError(f"more than {DECODED_BYTES_MAX} bytes")
    return [
        each
        for each in _DECODER.decode(plain)[: EDGES_MAX + LOST_LISTED_MAX]
        if valid_name(each.tenant) and valid_name(each.edge) and all(map(_is_sound, each.lost))
    ]


def _is_sound(lost: LostLane) -> bool:
    return valid_name(lost.stream) and _LOG(lost.log) is not None and min(lost.shard, lost.records, lost.first_seq) >= 0
