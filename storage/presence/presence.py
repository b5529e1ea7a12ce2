"""Presence: entries of processes in a store, written again and again, by which they know who is there.

No wall clock matters: an entry counts as long as its content changes. Who is there is a hint, since an entry may be
late; nothing that must be right may depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from weft.bounds.background import BackgroundTask
from weft.config.log_lines.repeats import Repeats, left_out
from weft.storage.object_store import (
    AlreadyExists,
    NotFound,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    Written,
)
from weft.storage.presence.entries import Entries, Seen
from weft.storage.presence.nodes import ENTRY_BYTES_MAX

_logger = logging.getLogger(__name__)
BEAT_S = 5.0
"""Interval of looks beside others, with a write each. Writes and listings cost money."""
ALONE_BEATS = 4
"""Interval of looks while alone, without a write, in beats."""
MISSED_MAX = 3
"""Number of missed writes after which one counts as gone."""
FORGET_S = 3600.0
"""Time after which the entry of one that is gone is removed."""
LISTED_MAX = 10_000
"""Maximum number of entries that a look lists."""
READS_AT_ONCE = 16


class Presence:
    """The entries below a prefix, as one of those who write them sees them.

    Args:
        prefix, own: the entry's key is ``prefix/own``; ``own`` is unique to each start.
        content: number of the beat, from 1 -> content of the own entry, which must differ from the last one.
        looked: called after each look.
        wrote: called with the boot clock before and after a write, and the store's time of it, where that is known.
        boot: nanoseconds.
        beat_s: interval of looks and writes while others look.
        alone_write_s: interval of writes while none does; None for none.
        is_watched: whether others look; None if all who have entries do.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        own: str,
        content: Callable[[int], bytes],
        *,
        boot: Callable[[], int],
        looked: Callable[[], Awaitable[None]],
        wrote: Callable[[int, int, Written], None] = lambda before, after, written: None,  # noqa: ARG005
        beat_s: float = BEAT_S,
        alone_write_s: float | None = None,
        is_watched: Callable[[], bool] | None = None,
    ) -> None:
        self._store, self._prefix, self._own, self._content = store, prefix, own, content
        self._boot, self._looked, self._wrote = boot, looked, wrote
        self._beat_s, self._alone_s, self._alone_write_s = beat_s, ALONE_BEATS * beat_s, alone_write_s
        self._is_watched = is_watched or (lambda: bool(self._others))
        self._was_watched = False
        self._now = asyncio.get_running_loop().time
        self._etag: str | None = None
        self._beats = 0
        self._written_at: float | None = None
        self._written_boot: tuple[int, int] | None = None
        """The boot clock before and after the last write; None when that is not clear."""
        # One that is alone writes its entry each ``alone_write_s`` until it sees another.
        self._others = Entries(own, max(2 * self._alone_s, 2 * (alone_write_s or 0.0)), FORGET_S)
        self._repeats = Repeats()
        self._task = BackgroundTask()
        self._sooner = asyncio.Event()

    def others(self) -> Mapping[str, Seen]:
        """Return the entries of the others, by name, also of those that are gone."""
        return self._others.seen(self._now())

    async def start(self) -> None:
        """Write the entry, look once, and go on in the background.

        Raises:
            StoreError: the store did not answer.
        """
        await self.look()
        self._task.start(self._run(), name=f"presence-{self._prefix}")

    def hurry(self) -> None:
        """Write the entry at once: its content has changed in a way that others wait for."""
        self._sooner.set()

    async def close(self) -> None:
        """Stop, and remove the entry: the others know at their next look."""
        if not await self._task.close():
            return
        try:
            await self._store.delete(self._key(self._own))
        except StoreError as error:
            _logger.info("the entry %s stays in the store until others remove it: %s", self._key(self._own), error)

    async def look(self, *, writes: bool = True) -> None:
        """Write the own entry if anyone looks or it is time, and see who is there.

        Args:
            writes: False before the process serves anyone.

        Raises:
            StoreError: the store did not answer.
        """
        listed = await self._store.list(self._prefix, limit=LISTED_MAX)
        sound = {item.key.removeprefix(f"{self._prefix}/") for item in listed if item.size <= ENTRY_BYTES_MAX}
        names, contents = sound - {self._own}, dict[str, bytes | None]()
        chosen = self._others.choose(names, self._now())
        for at in range(0, len(chosen), READS_AT_ONCE):
            part = chosen[at : at + READS_AT_ONCE]
            contents.update(zip(part, await asyncio.gather(*map(self._read, part)), strict=True))
        for name in self._others.note(contents, names, self._now()):
            await self._store.delete(self._key(name))
        await self._looked()
        was_watched, self._was_watched = self._was_watched, self._is_watched()
        is_first = was_watched or self._own not in sound  # after the last one who looked, the next write is later
        if writes and (self._was_watched or is_first or self._sooner.is_set() or self._is_due()):
            self._sooner.clear()
            await self._beat()

    @property
    def _silent_s(self) -> float:
        return self._now() - self._written_at if self._written_at is not None else float("inf")

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _is_due(self) -> bool:
        return self._alone_write_s is not None and self._silent_s >= self._alone_write_s - self._alone_s / 2

    async def _read(self, name: str) -> bytes | None:
        try:
            return (await self._store.get(self._key(name))).data
        except NotFound:
            return None

    async def _beat(self) -> None:
        key, self._beats = self._key(self._own), self._beats + 1
        content, last, self._written_boot = self._content(self._beats), self._written_boot, None
        before = self._boot()
        try:
            if self._etag is None:
                self._etag = await self._store.create(key, content)
            else:
                if last is not None and (written := (await self._store.get(key)).written) is not None:
                    self._wrote(*last, written)
                before = self._boot()
                self._etag = await self._store.swap(key, content, self._etag)
        except (AlreadyExists, PreconditionFailed, NotFound):
            # An earlier attempt of its own had an unknown outcome, or its entry was removed in a long pause.
            self._etag = None
            with contextlib.suppress(NotFound):
                self._etag = (await self._store.get(key)).etag
            return
        self._written_at, self._written_boot = self._now(), (before, self._boot())

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._sooner.wait(), self._beat_s if self._is_watched() else self._alone_s)
            await self._try()

    async def _try(self) -> None:
        what = f"who else is there cannot be seen ({self._prefix})"
        try:
            await self.look()
        except Exception as error:  # without looks, the work of one that is gone would stand still
            if not isinstance(error, StoreError | NotFound):
                _logger.exception("a look at %s failed", self._prefix)
            count = self._repeats.say(what, self._now())
            if count is not None:
                _logger.warning("%s: %s%s", what, error, left_out(count))
            self._sooner.clear()
            await asyncio.sleep(self._beat_s / 5)
        else:
            self._repeats.forget(what)
