"""Division of a store's tables among those who keep tables: hub processes, and clusters of Spark that claim some.

Each has an object in the store that it writes again while others are there. Who is alive is a hint: the version of a
table decides which write counts. No wall clock matters: an object counts as long as its content changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b

import msgspec

from weft.bounds.background import BackgroundTask
from weft.config.log_lines.repeats import Repeats, left_out
from weft.protocols.shard.shard_state import StreamKey
from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreError
from weft.storage.presence.entries import Entries
from weft.storage.presence.nodes import ENTRY_BYTES_MAX, NAME_CHARACTERS_MAX
from weft.storage.presence.presence import LISTED_MAX, READS_AT_ONCE

_logger = logging.getLogger(__name__)
BEAT_S, ALONE_S = 5.0, 20.0
"""Longest intervals of looks: beside others, with a write each, and alone, with a listing only: they cost money."""
BEAT_MIN_S = 0.5
MISSED_MAX = 3
"""Number of missed beats after which a keeper counts as gone."""
TROUBLES_MAX, TROUBLE_CHARACTERS_MAX, STOPPED_MAX = 32, 300, 4
"""Bounds of what a beat says about tables that are held up: tables, characters of a text, and ranges of one table."""
BEAT_BYTES = 12 << 10
"""Bytes of a beat with troubles, which leaves some out where it would be longer. Readers take ``ENTRY_BYTES_MAX``."""
KNOWN_BEATS = 1.5
"""Beats after which the others, who look each beat, have seen what one has written."""
FORGET_S = 120.0
"""Time after which the object of one that is gone is removed."""


class Claim(msgspec.Struct, frozen=True):
    """The statement of a keeper that is no hub process: the tables that it makes for as long as it is alive."""

    name: str
    """Name of the maker, for people."""
    since: int
    """Start of the maker by its own clock, nanoseconds since 1970, for people."""
    tenants: str = "*"
    streams: str = "*"
    """Patterns of names, in which ``*`` stands for any characters."""

    def covers(self, stream: StreamKey) -> bool:
        """Return whether a stream is among those claimed."""
        return fnmatchcase(stream[0], self.tenants) and fnmatchcase(stream[1], self.streams)


class TableTrouble(msgspec.Struct, frozen=True, array_like=True):
    """The reason that holds up a table, as its maker tells others."""

    tenant: str
    stream: str
    error: str
    stopped: tuple[tuple[int, int, int, str], ...] = ()
    """Records that cannot become rows: shard, first offset, offset after the last, reason."""


class _Beat(msgspec.Struct, frozen=True):
    """Content of the object of a keeper; releases before this one write a number for a hub process."""

    beat: int
    claim: Claim | None = None
    node: str = ""
    """Name of the hub process, for people."""
    joins: bool = False
    """True while others that are alive may not know of it yet: they go on with all tables until it has said no."""

    troubles: tuple[TableTrouble, ...] = ()
    """Troubles of the tables that it makes, as many as fit."""


_UNSAID = _Beat(0)


class Keepers:
    """The keepers of a store as one of them sees them.

    Args:
        own: name of this keeper, unique to each start of a process.
        claim: tables that this keeper makes instead of the hub; None for a hub process.
        interval_s: interval of the table step, the upper bound of all intervals here.
        monotonic: seconds.
        changed: called when other tables may be this keeper's.
        node: name of the hub process, for people.
    """

    def __init__(
        self,
        store: ObjectStore,
        own: str,
        interval_s: float,
        monotonic: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
        *,
        claim: Claim | None = None,
        node: str = "",
    ) -> None:
        self._store, self._own, self._monotonic, self._changed = store, own, monotonic, changed
        self._beat_s = max(BEAT_MIN_S, min(BEAT_S, interval_s))
        self._alone_s = max(BEAT_MIN_S, min(ALONE_S, interval_s))
        self._claim, self._node = claim, node
        self._etag: str | None = None
        self._count = 0
        self._others = Entries(own, MISSED_MAX * self._beat_s, FORGET_S)
        """The objects of other keepers."""
        self._waits = False
        """True until its first look, by which it knows whether it joins others."""
        self._joins_until: float | None = None
        """Moment up to which others that are alive may not know of it; None once it has said that they do."""
        self._keeps_from: float | None = None
        """Moment from which the others have seen that it has joined; None before it joins, and long after."""
        self.troubles: Sequence[TableTrouble] = ()
        """Troubles of the tables that this keeper makes. The next beat tells others of them."""
        self._alive: dict[str, _Beat] = {}
        """Last words of the others that are alive, by name."""
        self._repeats = Repeats()
        self._task = BackgroundTask()

    async def start(self, waits: bool = True) -> None:
        """Join: look once, and go on in the background.

        Args:
            waits: whether it keeps no table before those that are alive know of it. It is only about work done twice.

        A store that does not answer is no reason to stop: the table step will not get far either.
        """
        self._waits = waits
        await self._try()
        self._task.start(self._run(), name="table-keepers")

    async def close(self) -> None:
        """Leave: the others take over at their next look."""
        if await self._task.close():
            with contextlib.suppress(StoreError, NotFound):
                await self._store.delete(hub_keys.keeper_key(self._own))

    @property
    def alive(self) -> int:
        """Return the number of keepers that count as alive, this one included."""
        return len(self._alive) + 1

    def keeps(self, stream: StreamKey) -> bool:
        """Return whether this keeper makes a stream's table: of all that are alive and may, one does (rendezvous
        hashing). Hub processes may if no claim covers the stream, and others only with such a claim."""
        return self._first(self._claiming(stream) or self._hubs(), stream) == self._own

    def keeps_beside(self, stream: StreamKey) -> bool:
        """Return whether this keeper makes what stands beside a stream's table, which no claim covers."""
        return self._first(self._hubs(), stream) == self._own

    def claimed_by(self, stream: StreamKey) -> Claim | None:
        """Return the claim of one that is alive and makes a stream's table; None if hub processes make it."""
        claiming = sorted(self._claiming(stream).items())
        return claiming[0][1].claim if claiming else None

    def process_of(self, stream: StreamKey) -> str | None:
        """Return the name of the hub process that makes a stream's table, as far as this keeper knows; None if that is
        not known, or if a claim covers the stream."""
        hubs = self._hubs()
        if self._claiming(stream) or (first := self._first(hubs, stream)) is None:
            return None
        return hubs[first].node or None

    def trouble_of(self, stream: StreamKey) -> TableTrouble | None:
        """Return what holds up a stream's table, as the other hub process says that makes it; None without any, and
        where this keeper makes it."""
        hubs = self._hubs()
        if self._claiming(stream) or (first := self._first(hubs, stream)) is None:
            return None
        return next((each for each in hubs[first].troubles if (each.tenant, each.stream) == stream), None)

    def _all(self) -> dict[str, _Beat]:
        return {**self._alive, self._own: _Beat(0, self._claim, self._node, self._is_joining())}

    def _hubs(self) -> dict[str, _Beat]:
        return {name: each for name, each in self._all().items() if each.claim is None}

    def _claiming(self, stream: StreamKey) -> dict[str, _Beat]:
        # A claim is in force when the hub's processes know of it.
        said = self._all().items()
        return {name: each for name, each in said if each.claim and not each.joins and each.claim.covers(stream)}

    def _is_joining(self) -> bool:
        if not self._alive:
            return False
        if self._joins_until is not None:
            return True
        if self._keeps_from is not None and self._monotonic() >= self._keeps_from:
            self._keeps_from = None
        return self._keeps_from is not None

    @staticmethod
    def _first(among: Mapping[str, _Beat], stream: StreamKey) -> str | None:
        """Return which of some keepers is to make a table: one that the others know of, if there are any."""
        names = [name for name, each in among.items() if not each.joins] or list(among)
        if len(names) < 2:
            return names[0] if names else None
        text = "/".join(stream).encode()
        return max(names, key=lambda each: blake2b(text, key=each.encode()).digest())

    async def look(self) -> None:
        """See who is there, and show that this one is, if anyone looks.

        Raises:
            StoreError: the store did not answer.
        """
        prefix = f"{hub_keys.KEEPERS}/"
        found_now = await self._store.list(hub_keys.KEEPERS, limit=LISTED_MAX)
        sound = {item.key.removeprefix(prefix) for item in found_now if item.size <= ENTRY_BYTES_MAX}
        others = sound - {self._own}
        if self._waits:
            # One that was alone looks for others only now and then; one that is gone is found out by then.
            self._waits, self._joins_until = False, self._monotonic() + 1.5 * self._alone_s if others else None
        if others or self._etag is None or self._own not in sound or self._joins_until is not None:
            await self._beat()
        chosen, contents = self._others.choose(others, self._monotonic()), dict[str, bytes | None]()
        for at in range(0, len(chosen), READS_AT_ONCE):
            part = chosen[at : at + READS_AT_ONCE]
            contents.update(zip(part, await asyncio.gather(*map(self._content, part)), strict=True))
        now = self._monotonic()
        for name in self._others.note(contents, others, now):
            await self._store.delete(hub_keys.keeper_key(name))
        found = self._others.seen(now)
        alive = {name: _said(seen.content) for name, seen in found.items() if seen.age_s <= MISSED_MAX * self._beat_s}
        if alive.keys() != self._alive.keys():
            _logger.info("keepers of tables that are alive: %d", len(alive) + 1)
        is_changed = {name: _terms(each) for name, each in alive.items()} != {
            name: _terms(each) for name, each in self._alive.items()
        }
        self._alive = alive
        if is_changed:
            self._changed()

    async def _content(self, name: str) -> bytes | None:
        try:
            return (await self._store.get(hub_keys.keeper_key(name))).data
        except NotFound:
            return None

    async def _beat(self) -> None:
        key, self._count = hub_keys.keeper_key(self._own), self._count + 1
        joins = self._joins_until is not None and self._monotonic() < self._joins_until
        told = tuple(map(_shortened, self.troubles[:TROUBLES_MAX]))
        while (
            len(content := msgspec.json.encode(_Beat(self._count, self._claim, self._node, joins, told))) > BEAT_BYTES
        ):
            told = told[: len(told) // 2]
        try:
            if self._etag is None:
                self._etag = await self._store.create(key, content)
            else:
                self._etag = await self._store.swap(key, content, self._etag)
        except (AlreadyExists, PreconditionFailed, NotFound):
            # An earlier attempt of its own had an unknown outcome, or its object was removed in a long pause.
            self._etag = None
            with contextlib.suppress(NotFound):
                self._etag = (await self._store.get(key)).etag
            return
        if not joins and self._joins_until is not None:
            self._joins_until, self._keeps_from = None, self._monotonic() + KNOWN_BEATS * self._beat_s

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._beat_s if self._others else self._alone_s)
            await self._try()

    async def _try(self) -> None:
        what = "who else keeps tables cannot be seen"
        try:
            await self.look()
        except Exception as error:  # without looks, the tables of one that is gone would stand still
            if not isinstance(error, StoreError | NotFound):
                _logger.exception("a look at the keepers of tables failed")
            count = self._repeats.say(what, self._monotonic())
            if count is not None:
                _logger.warning("%s: %s%s", what, error, left_out(count))
        else:
            self._repeats.forget(what)


def _terms(beat: _Beat) -> tuple[Claim | None, str, bool]:
    """Return what decides who makes which tables."""
    return beat.claim, beat.node, beat.joins


def _shortened(trouble: TableTrouble) -> TableTrouble:
    told = trouble.stopped[:STOPPED_MAX]
    stopped = tuple((shard, first, end, why[:TROUBLE_CHARACTERS_MAX]) for shard, first, end, why in told)
    return TableTrouble(trouble.tenant, trouble.stream, trouble.error[:TROUBLE_CHARACTERS_MAX], stopped)


def _said(content: bytes) -> _Beat:
    """Return what an object says, without its number: what is unreadable counts as a hub process without a name."""
    try:
        found = msgspec.json.decode(content, type=_Beat)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _UNSAID
    named = found.node if len(found.node) <= NAME_CHARACTERS_MAX and found.node.isprintable() else ""
    return msgspec.structs.replace(found, beat=0, node=named)
