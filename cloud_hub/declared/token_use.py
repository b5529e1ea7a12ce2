"""Last uses of the tokens of the cluster log, for people: an object in the store, written about once an hour.

A process notes each use in memory. It writes the first use of a token within a minute, and later uses once an hour, so
that ten thousand tokens in use cost a write an hour and process. What is shown may be an hour old, and a process that
is killed takes an hour of uses with it. No right depends on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from weft.bounds.background import BackgroundTask
from weft.config.log_lines.repeats import Repeats, left_out
from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreError

_logger = logging.getLogger(__name__)
LOOK_S = 60.0
WRITE_S = 3600.0
"""Shortest time between two writes that tell of no token for the first time."""
TRIES_MAX = 5
CLOSE_S = 5.0
TOKENS_MAX = 65_536
"""Maximum number of tokens in the object, those that were used last."""
OBJECT_BYTES_MAX = 16 << 20
_DECODER = msgspec.json.Decoder(dict[str, int])


class TokenUse:
    """The uses that one process sees.

    Args:
        used: returns the moment of the last use of each declared token, nanoseconds since 1970, that this process saw.
        is_declared: whether the cluster log has a token of a name.
        monotonic: seconds.
    """

    def __init__(
        self, store: ObjectStore, used: Callable[[], Mapping[str, int]], is_declared: Callable[[str], bool],
        monotonic: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store, self._used, self._is_declared, self._monotonic = store, used, is_declared, monotonic
        self._written: dict[str, int] = {}
        """The moments that this process knows to be in the store."""
        self._written_at = monotonic()
        self._repeats = Repeats()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Write in the background."""
        self._task.start(self._run(), name="token-use")

    async def close(self) -> None:
        """Write what is new, and stop."""
        if await self._task.close():
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._write()
            except (StoreError, TimeoutError) as error:
                _logger.info("the last uses of tokens were not stored: %s", error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except StoreError as error:
                count = self._repeats.say("write", self._monotonic())
                if count is not None:
                    _logger.warning("uses of tokens wait for the store: %s%s", error, left_out(count))
            except Exception:  # without this task, tokens would seem to be unused
                _logger.exception("uses of tokens could not be stored")

    async def look(self) -> None:
        """Write if a token was used for the first time, or an hour is over.

        Raises:
            StoreError: the store did not answer.
        """
        is_due = self._monotonic() - self._written_at >= WRITE_S
        if is_due or any(name not in self._written for name in self._used()):
            await self._write()

    async def _write(self) -> None:
        news = {name: at for name, at in self._used().items() if at > self._written.get(name, 0)}
        for _ in range(TRIES_MAX if news else 0):
            found, etag = await _read(self._store)
            merged = {**found, **{name: max(at, found.get(name, 0)) for name, at in news.items()}}
            kept = sorted((at, name) for name, at in merged.items() if self._is_declared(name))[-TOKENS_MAX:]
            wanted = {name: at for at, name in kept}
            try:
                if etag is None:
                    await self._store.create(hub_keys.LAST_USES, msgspec.json.encode(wanted))
                elif wanted != found:
                    await self._store.swap(hub_keys.LAST_USES, msgspec.json.encode(wanted), etag)
            except (AlreadyExists, PreconditionFailed):
                continue
            self._written = wanted | news
            break
        self._written_at = self._monotonic()


async def last_uses(store: ObjectStore) -> dict[str, int]:
    """Return the last known use of each token, nanoseconds since 1970.

    Raises:
        StoreError: the store did not answer.
    """
    return (await _read(store))[0]


async def _read(store: ObjectStore) -> tuple[dict[str, int], str | None]:
    try:
        found = await store.get(hub_keys.LAST_USES)
    except NotFound:
        return {}, None
    try:
        return _DECODER.decode(found.data) if len(found.data) <= OBJECT_BYTES_MAX else {}, found.etag
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}, found.etag  # it begins again
