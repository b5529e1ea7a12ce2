"""Words of edges about their configurations, kept in the store: an object for each shard.

Ten thousand edges say something within a minute of a change. A process gathers what its links say for a second, and
writes one object for each shard that something changed in; while no edge says anything, it neither reads nor writes.
The cluster log would get an entry for each word, for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from weft.bounds.background import BackgroundTask
from weft.protocols.fields import U32, U64, Nanoseconds
from weft.protocols.lane import NodeName
from weft.protocols.link.configuration import REASON_CHARACTERS_MAX, ConfigOutcome, ConfigState
from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, Listed, NotFound, ObjectStore, PreconditionFailed, StoreError

_logger = logging.getLogger(__name__)
INTERVAL_S = 1.0
RETRY_S = 5.0
TRIES_MAX = 5
"""Number of attempts to write an object that others write, before the next interval."""
EDGES_MAX = 65_536
"""Maximum number of edges in one object; beyond it, the one that said nothing for longest is left out."""
OBJECT_BYTES_MAX = 64 << 20
"""Maximum size of an object, likewise: readers pass over a larger one."""
WHOLE_LOOKS = 12
"""Each so many reads of the same edges look into every object: an edge that left one may hide that another came."""
LOOKED_AT_ONCE = 256
TAKES_NONE = 100
"""Outcome of an edge that takes no configuration: its release does not know the feature, or its file allows none."""


class EdgeConfigState(msgspec.Struct, frozen=True, array_like=True):
    """The last word of an edge."""

    tenant: str
    edge: str
    at: Nanoseconds
    """Moment by the clock of the hub process that heard it."""
    version: U64
    """Version of the configuration that it is about."""
    digest: str
    outcome: U32
    """``ConfigOutcome``, or ``TAKES_NONE``."""
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]
    active_version: U64
    active_digest: str

    @property
    def has_failed(self) -> bool:
        """Return whether the edge refused the configuration, or took it back."""
        return self.outcome in (ConfigOutcome.REFUSED, ConfigOutcome.ROLLED_BACK)

    def says_as(self, other: EdgeConfigState | None) -> bool:
        """Return whether it says the same, at whatever moment."""
        return other is not None and msgspec.structs.replace(self, at=other.at) == other


class _States(msgspec.Struct, frozen=True):
    edges: Annotated[list[msgspec.Raw], Meta(max_length=EDGES_MAX)]
    """States in their encoded form: to decode all of them at once would take a tenth of a second."""


class _Word(NamedTuple):
    said: EdgeConfigState
    raw: msgspec.Raw


_HEAD_BYTES = 64
"""Room for what is around the states in an object."""
_DECODER = msgspec.msgpack.Decoder(_States)
_WORDS = msgspec.msgpack.Decoder(EdgeConfigState)


class ConfigStates:
    """The words of edges that this process hears.

    Args:
        place: shard of an edge.
        now: nanoseconds since 1970.
    """

    def __init__(self, store: ObjectStore, place: Callable[[NodeName], int], now: Callable[[], int]) -> None:
        self._store = store
        self._place = place
        self._now = now
        self._waiting: dict[NodeName, EdgeConfigState] = {}
        self._wake = asyncio.Event()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Write in the background."""
        self._task.start(self._run(), name="config-states")

    async def close(self) -> None:
        """Write what waits, and stop."""
        if await self._task.close():
            try:
                async with asyncio.timeout(RETRY_S):
                    await self.write()
            except (StoreError, TimeoutError):
                _logger.warning("words of %d edges about their configurations were not stored", len(self._waiting))

    def note(self, node: NodeName, state: ConfigState) -> None:
        """Note what an edge says."""
        self._note(EdgeConfigState(
            node.tenant, node.edge, self._now(), state.version, state.digest, state.outcome, state.reason,
            state.active_version, state.active_digest,
        ))  # fmt: skip

    def note_takes_none(self, node: NodeName) -> None:
        """Note that an edge that is to have a configuration takes none."""
        self._note(EdgeConfigState(node.tenant, node.edge, self._now(), 0, "", TAKES_NONE, "", 0, ""))

    def _note(self, said: EdgeConfigState) -> None:
        self._waiting[NodeName(said.tenant, said.edge)] = said
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(INTERVAL_S)  # others say something too
            self._wake.clear()
            try:
                await self.write()
            except StoreError as error:
                _logger.warning("words of edges about their configurations wait for the store: %s", error)
            except Exception:  # without this task, `weft hub config status` would stand still
                _logger.exception("words of edges about their configurations could not be stored")
            if self._waiting:
                self._wake.set()
                await asyncio.sleep(RETRY_S)

    async def write(self) -> None:
        """Store what waits.

        Raises:
            StoreError: the store did not answer. What it has not taken still waits.
        """
        by_shard: dict[int, list[EdgeConfigState]] = {}
        for node, said in self._waiting.items():
            by_shard.setdefault(self._place(node), []).append(said)
        for shard, words in by_shard.items():
            if await self._write(shard, words):
                for said in words:
                    node = NodeName(said.tenant, said.edge)
                    if self._waiting.get(node) is said:
                        del self._waiting[node]

    async def _write(self, shard: int, words: Iterable[EdgeConfigState]) -> bool:
        """Write the object of a shard. Return False if others always forestalled this process."""
        key = hub_keys.config_states_key(shard)
        for _ in range(TRIES_MAX):
            found, etag = await _read(self._store, key)
            if not await _merge(found, words):
                return True
            kept = _newest(sorted(found.values(), key=_at)[-EDGES_MAX:])
            data = msgspec.msgpack.encode(_States(kept))
            try:
                if etag is None:
                    await self._store.create(key, data)
                else:
                    await self._store.swap(key, data, etag)
            except (AlreadyExists, PreconditionFailed, NotFound):
                continue
            return True
        return False


async def _merge(found: dict[NodeName, _Word], words: Iterable[EdgeConfigState]) -> bool:
    """Put words in the place of earlier ones. Return whether one of them is new."""
    is_new = False
    for at, each in enumerate(words, 1):
        if at % LOOKED_AT_ONCE == 0:
            await asyncio.sleep(0)
        name = NodeName(each.tenant, each.edge)
        before = found.get(name)
        # An edge that connects again says nothing new: a read, and no write.
        if before is None or not each.says_as(before.said):
            found[name], is_new = _Word(each, msgspec.Raw(msgspec.msgpack.encode(each))), True
    return is_new


def _at(word: _Word) -> int:
    return word.said.at


def _newest(words: Sequence[_Word]) -> list[msgspec.Raw]:
    """Return the last words, in their order, as many as an object has room for."""
    room, first = OBJECT_BYTES_MAX - _HEAD_BYTES, len(words)
    while first and (room := room - memoryview(words[first - 1].raw).nbytes) >= 0:
        first -= 1
    return [each.raw for each in words[first:]]


async def _read(store: ObjectStore, key: str) -> tuple[dict[NodeName, _Word], str | None]:
    try:
        found = await store.get(key)
    except NotFound:
        return {}, None
    words: dict[NodeName, _Word] = {}
    try:
        for at, raw in enumerate(_DECODER.decode(found.data).edges, 1):
            if at % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            said = _WORDS.decode(raw)
            words[NodeName(said.tenant, said.edge)] = _Word(said, raw)
    except (msgspec.MsgspecError, ValueError):
        _logger.warning("%s cannot be read and is replaced: its edges say it again at their next link", key)
        return {}, found.etag
    return words, found.etag


class Concerned(NamedTuple):
    """The edges whose words a reader wants."""

    covers: Callable[[NodeName], bool]
    names: frozenset[NodeName] | None = None
    """All of them; None if others may be among them."""
    what: Hashable = None
    """Value that differs where ``covers`` does."""


class StatesReader:
    """The words of some edges, read again and again: as few objects as possible each time.

    Args:
        places: the shards in whose objects the words of an edge may be.
    """

    def __init__(self, store: ObjectStore, places: Callable[[NodeName], Iterable[int]]) -> None:
        self._store = store
        self._places = places
        self._without: dict[str, int] = {}
        """Size of each object without a word of these edges: the first word of one makes it longer."""
        self._what: Hashable = None
        self._looks = 0

    async def read(self, concerned: Concerned) -> dict[NodeName, EdgeConfigState]:
        """Return the last word of each edge that is concerned.

        Raises:
            StoreError: the store did not answer.
        """
        self._looks += 1
        if concerned.what != self._what or self._looks % WHOLE_LOOKS == 0:
            self._without.clear()
            self._what = concerned.what
        if concerned.names is None:
            listed = await self._store.list(f"{hub_keys.CONFIG_STATES}/")
        else:
            shards = {shard for name in concerned.names for shard in self._places(name)}
            listed = [Listed(hub_keys.config_states_key(shard), 0) for shard in sorted(shards)]
        states: dict[NodeName, EdgeConfigState] = {}
        for key, size in listed:
            if size > OBJECT_BYTES_MAX or self._without.get(key) == size > 0:
                continue
            if await self._take(states, key, concerned.covers):
                self._without.pop(key, None)
            else:
                self._without[key] = size
        return states

    async def _take(self, states: dict[NodeName, EdgeConfigState], key: str, covers: Callable[[NodeName], bool]) -> int:
        """Add the words in an object; return how many. After a split of a shard, an edge is in two objects: the later
        word counts."""
        count = 0
        for at, (name, (said, _)) in enumerate((await _read(self._store, key))[0].items(), 1):
            if at % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if covers(name):
                count += 1
                if name not in states or states[name].at <= said.at:
                    states[name] = said
        return count


async def read_states(store: ObjectStore) -> dict[NodeName, EdgeConfigState]:
    """Return the last word of every edge.

    Raises:
        StoreError: the store did not answer.
    """
    return await StatesReader(store, lambda _: ()).read(Concerned(lambda _: True))
