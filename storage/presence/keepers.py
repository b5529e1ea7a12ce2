"""Division of a store's tables among those who keep tables: hub nodes, and clusters of Spark that claim some.

Each has an object in the store that it writes again while others are there. Who is alive is a hint: the version of a
table decides which write counts. No wall clock matters: an object counts as long as its content changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b

import msgspec

from weft.bounds.background import BackgroundTask
from weft.config.log_lines.repeats import Repeats, left_out
from weft.protocols.shard.shard_state import StreamKey
from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreError
from weft.storage.presence.entries import Entries
from weft.storage.presence.nodes import ENTRY_BYTES_MAX
from weft.storage.presence.presence import LISTED_MAX, READS_AT_ONCE

_logger = logging.getLogger(__name__)
BEAT_S, ALONE_S = 5.0, 20.0
"""Longest intervals of looks: beside others, with a write each, and alone, with a listing only: they cost money."""
BEAT_MIN_S = 0.5
MISSED_MAX = 3
"""Number of missed beats after which a keeper counts as gone."""
FORGET_S = 120.0
"""Time after which the object of one that is gone is removed."""


class Claim(msgspec.Struct, frozen=True):
    """The statement of a keeper that is no hub node: the tables that it makes for as long as it is alive."""

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


class _Beat(msgspec.Struct, frozen=True):
    """Content of the object of a keeper with a claim; that of a hub node is a number."""

    beat: int
    claim: Claim


class Keepers:
    """The keepers of a store as one of them sees them.

    Args:
        own: name of this keeper, unique to each start of a node.
        claim: tables that this keeper makes instead of the hub's nodes; None for one of these.
        interval_s: interval of the table step, the upper bound of all intervals here.
        monotonic: seconds.
        changed: called when other tables may be this keeper's.
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
    ) -> None:
        self._store, self._own, self._monotonic, self._changed = store, own, monotonic, changed
        self._beat_s = max(BEAT_MIN_S, min(BEAT_S, interval_s))
        self._alone_s = max(BEAT_MIN_S, min(ALONE_S, interval_s))
        self._claim = claim
        self._claims = {} if claim is None else {own: claim}
        """Claims of keepers that are alive."""
        self._etag: str | None = None
        self._count = 0
        self._others = Entries(own, MISSED_MAX * self._beat_s, FORGET_S)
        """The objects of other keepers."""
        self._waits_until: float | None = None
        """Moment until which it keeps no table, since another one may not know of it yet; None afterwards."""
        self._alive: tuple[str, ...] = ()
        self._repeats = Repeats()
        self._task = BackgroundTask()

    async def start(self, waits: bool = True) -> None:
        """Join: look once, and go on in the background.

        Args:
            waits: whether it keeps no table before those that are alive know of it. It is only about work done twice.

        A store that does not answer is no reason to stop: the table step will not get far either.
        """
        await self._try()
        if self._others and waits:
            # One that was alone looks for others only now and then; one that is gone is found out by then.
            self._waits_until = self._monotonic() + 1.5 * self._alone_s + self._beat_s
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
        hashing). Hub nodes may if no claim covers the stream, and others only with such a claim."""
        among = [name for name, claim in self._claims.items() if claim.covers(stream)]
        return self._is_first(among, stream) if among else self.keeps_beside(stream)

    def keeps_beside(self, stream: StreamKey) -> bool:
        """Return whether this keeper makes what stands beside a stream's table, which no claim covers."""
        return self._is_first([name for name in (*self._alive, self._own) if name not in self._claims], stream)

    def _is_first(self, among: Sequence[str], stream: StreamKey) -> bool:
        if self._own not in among:
            return False
        if self._waits_until is not None:
            if self._monotonic() < self._waits_until and self._alive:
                return False
            self._waits_until = None
        if len(among) == 1:
            return True
        name = "/".join(stream).encode()
        return max(among, key=lambda each: blake2b(name, key=each.encode()).digest()) == self._own

    def claimed_by(self, stream: StreamKey) -> Claim | None:
        """Return the claim of one that is alive and makes a stream's table; None if hub nodes make it."""
        return next((claim for _, claim in sorted(self._claims.items()) if claim.covers(stream)), None)

    async def look(self) -> None:
        """See who is there, and show that this one is, if anyone looks.

        Raises:
            StoreError: the store did not answer.
        """
        prefix = f"{hub_keys.KEEPERS}/"
        found_now = await self._store.list(hub_keys.KEEPERS, limit=LISTED_MAX)
        sound = {item.key.removeprefix(prefix) for item in found_now if item.size <= ENTRY_BYTES_MAX}
        others = sound - {self._own}
        if others or self._etag is None or self._own not in sound:
            await self._beat()
        chosen, contents = self._others.choose(others, self._monotonic()), dict[str, bytes | None]()
        for at in range(0, len(chosen), READS_AT_ONCE):
            part = chosen[at : at + READS_AT_ONCE]
            contents.update(zip(part, await asyncio.gather(*map(self._content, part)), strict=True))
        now = self._monotonic()
        for name in self._others.note(contents, others, now):
            await self._store.delete(hub_keys.keeper_key(name))
        found = self._others.seen(now)
        alive = tuple(name for name, seen in found.items() if seen.age_s <= MISSED_MAX * self._beat_s)
        if alive != self._alive:
            _logger.info("keepers of tables that are alive: %d", len(alive) + 1)
            self._alive = alive
            self._claims = {name: claim for name in alive if (claim := _claim_in(found[name].content)) is not None}
            if self._claim is not None:
                self._claims[self._own] = self._claim
            self._changed()

    async def _content(self, name: str) -> bytes | None:
        try:
            return (await self._store.get(hub_keys.keeper_key(name))).data
        except NotFound:
            return None

    async def _beat(self) -> None:
        key, self._count = hub_keys.keeper_key(self._own), self._count + 1
        content = str(self._count).encode()
        if self._claim is not None:
            content = msgspec.json.encode(_Beat(self._count, self._claim))
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


def _claim_in(content: bytes) -> Claim | None:
    try:
        return msgspec.json.decode(content, type=_Beat).claim
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
