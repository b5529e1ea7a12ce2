"""Division of a store's tables among the hub nodes that keep tables.

Each has an object in the store that it writes again while others are there. Who is alive is a hint: the version of a
table decides which write counts. No wall clock matters: an object counts as long as its content changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from hashlib import blake2b

from weft.config.log_lines.repeats import Repeats, left_out
from weft.protocols.shard.shard_state import StreamKey
from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreError

_logger = logging.getLogger(__name__)
BEAT_S, ALONE_S = 5.0, 20.0
"""Longest intervals of looks: beside others, with a write each, and alone, with a listing only: they cost money."""
BEAT_MIN_S = 0.5
MISSED_MAX = 3
"""Number of missed beats after which a keeper counts as gone."""
FORGET_S = 120.0
"""Time after which the object of one that is gone is removed."""


class Keepers:
    """The keepers of a store as one of them sees them.

    Args:
        own: name of this keeper, unique to each start of a node.
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
    ) -> None:
        self._store, self._own, self._monotonic, self._changed = store, own, monotonic, changed
        self._beat_s = max(BEAT_MIN_S, min(BEAT_S, interval_s))
        self._alone_s = max(BEAT_MIN_S, min(ALONE_S, interval_s))
        self._etag: str | None = None
        self._count = 0
        self._others: dict[str, tuple[bytes, float]] = {}
        """Other keepers: content, and the time of its last change."""
        self._waits_until: float | None = None
        """Moment until which it keeps no table, since another one may not know of it yet; None afterwards."""
        self._alive: tuple[str, ...] = ()
        self._repeats = Repeats()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join: look once, and go on in the background.

        A store that does not answer is no reason to stop: the table step will not get far either.
        """
        await self._try()
        if self._others:
            # One that was alone looks for others only now and then; one that is gone is found out by then.
            self._waits_until = self._monotonic() + 1.5 * self._alone_s + self._beat_s
        self._task = asyncio.get_running_loop().create_task(self._run(), name="table-keepers")

    async def close(self) -> None:
        """Leave: the others take over at their next look."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            with contextlib.suppress(StoreError, NotFound):
                await self._store.delete(hub_keys.keeper_key(self._own))

    @property
    def alive(self) -> int:
        """Return the number of keepers that count as alive, this one included."""
        return len(self._alive) + 1

    def keeps(self, stream: StreamKey) -> bool:
        """Return whether this keeper makes a stream's table: of all that are alive, one does (rendezvous hashing)."""
        if self._waits_until is not None:
            if self._monotonic() < self._waits_until and self._alive:
                return False
            self._waits_until = None
        if not self._alive:
            return True
        name = "/".join(stream).encode()
        return max((*self._alive, self._own), key=lambda each: blake2b(name, key=each.encode()).digest()) == self._own

    async def look(self) -> None:
        """See who is there, and show that this one is, if anyone looks.

        Raises:
            StoreError: the store did not answer.
        """
        prefix = f"{hub_keys.KEEPERS}/"
        listed = {item.key.removeprefix(prefix): item.key for item in await self._store.list(hub_keys.KEEPERS)}
        others = {name: key for name, key in listed.items() if name != self._own}
        if others or self._etag is None or self._own not in listed:
            await self._beat()
        found, now = dict[str, tuple[bytes, float]](), self._monotonic()
        for name, key in others.items():
            try:
                content = (await self._store.get(key)).data
            except NotFound:
                continue
            known = self._others.get(name)
            found[name] = known if known is not None and known[0] == content else (content, now)
            if now - found[name][1] > FORGET_S:
                await self._store.delete(key)
                del found[name]
        self._others = found
        alive = tuple(sorted(name for name, (_, since) in found.items() if now - since <= MISSED_MAX * self._beat_s))
        if alive != self._alive:
            _logger.info("keepers of tables that are alive: %d", len(alive) + 1)
            self._alive = alive
            self._changed()

    async def _beat(self) -> None:
        key, self._count = hub_keys.keeper_key(self._own), self._count + 1
        content = str(self._count).encode()
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
