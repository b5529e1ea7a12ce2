"""The key set of an issuer, read from its URL or a file, and read again now and then, and for a key that is not known.

An issuer may be away, hang, or answer with anything. Requests wait for it within bounds, and keys that were read stay
in force for a time that is said.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

import aiohttp

from weft.cloud_hub.api.identity.jwt.keys import KEY_SET_BYTES_MAX, KeySet, KeySetUnusable, SigningKey, read_key_set
from weft.cloud_hub.api.views import View, moment
from weft.cloud_hub.settings import JwtSettings
from weft.config.log_lines.repeats import Repeats, left_out
from weft.config.machine import why_unreadable

_logger = logging.getLogger(__name__)

READ_S = 10.0
"""Longest time of one attempt."""
WAIT_S = 3.0
"""Longest time that one request waits for an attempt."""
WAITING_MAX = 1024
"""Maximum number of requests that wait for one; the hub answers others with 503."""
SECOND = 10**9


class Issuer:
    """The keys of one issuer. Event loop's thread only.

    Args:
        monotonic: seconds.
        now: nanoseconds since 1970.
    """

    def __init__(self, settings: JwtSettings, monotonic: Callable[[], float], now: Callable[[], int]) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._now = now
        self._keys: KeySet | None = None
        self._thumbprints: frozenset[str] = frozenset()
        self._read_at = 0.0
        """Moment of the last successful attempt, by the monotonic clock."""
        self.asked_at = 0
        """Begin of the last attempt, nanoseconds since 1970: keys that the issuer made later may not be known."""
        self._failing_since: float | None = None
        self._began: float | None = None
        """Begin of the last attempt."""
        self._attempt: asyncio.Task[None] | None = None
        self._blocked: asyncio.Future[KeySet] | None = None
        """A read of a file that has outlasted its attempt."""
        self._has_failed = asyncio.Event()
        self._waiting = 0
        self._repeats = Repeats()
        self._loop: asyncio.Task[None] | None = None
        self.trouble: str | None = None
        """Reason for which the last attempt failed; None after a successful one."""

    def start(self) -> None:
        """Begin to read the keys, and to read them again."""
        self._loop = asyncio.create_task(self._again(), name="jwt-keys")

    async def close(self) -> None:
        """Stop reading."""
        tasks = [each for each in (self._loop, self._attempt) if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop = self._attempt = None

    @property
    def is_known(self) -> bool:
        """Return whether the keys count: they were read, not too long ago."""
        return self._keys is not None and self._monotonic() < self._read_at + self._settings.keep_s

    @property
    def failing_s(self) -> float:
        """Return the time since which the keys could not be read; 0 after a successful attempt."""
        return 0.0 if self._failing_since is None else max(0.0, self._monotonic() - self._failing_since)

    @property
    def count(self) -> int:
        """Return the number of keys that count."""
        return len(self._keys.keys) if self._keys is not None and self.is_known else 0

    def has(self, thumbprint: str) -> bool:
        """Return whether a key is still among those that were read last."""
        return thumbprint in self._thumbprints

    def find(self, name: str | None, algorithm: str) -> SigningKey | None:
        """Return the key of a token; None if there is none that counts."""
        return self._keys.find(name, algorithm) if self._keys is not None and self.is_known else None

    async def look(self) -> bool:
        """Read the keys if an attempt is allowed now, and wait for it within bounds, or for one that runs already.

        Returns:
            False if the issuer may have keys that are not known here.
        """
        running = self._attempt
        if running is None:
            if self._began is not None and self._monotonic() < self._began + self._settings.unknown_key_s:
                return self.trouble is None
            running = self._begin()
        if self._waiting >= WAITING_MAX:
            return False
        self._waiting += 1
        try:
            done, _ = await asyncio.wait({running}, timeout=WAIT_S)
        finally:
            self._waiting -= 1
        return bool(done) and self.trouble is None

    def kept_until(self) -> int | None:
        """Return the moment until which the keys count if they are not read again; None if none was read."""
        if self._keys is None:
            return None
        return self._now() + int((self._read_at + self._settings.keep_s - self._monotonic()) * SECOND)

    def view(self) -> View:
        """Return the state for status pages."""
        settings = self._settings
        known = self._keys is not None
        return {
            "issuer": settings.issuer,
            "key_set": settings.jwks_url or settings.jwks_file or "",
            "keys": self.count,
            "passed_over": 0 if self._keys is None else self._keys.passed_over,
            "read_seconds_ago": self._monotonic() - self._read_at if known else None,
            "kept_until": moment(self.kept_until()),
            "failing_seconds": self.failing_s,
            "trouble": self.trouble,
        }

    async def _again(self) -> None:
        while True:
            if self._attempt is None:
                self._begin()
            assert self._attempt is not None, "it has just begun"
            await asyncio.wait({self._attempt})
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next attempt is due: sooner if one fails meanwhile that a request began."""
        while True:
            self._has_failed.clear()
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._has_failed.wait()
            except TimeoutError:
                return

    def _pause_s(self) -> float:
        """Return the pause after an attempt; after failed ones, the longer they fail, the longer."""
        settings = self._settings
        if self.trouble is None:
            return settings.refresh_s
        return min(max(settings.unknown_key_s, self.failing_s / 4), settings.refresh_s)

    def _begin(self) -> asyncio.Task[None]:
        self._began, self.asked_at = self._monotonic(), self._now()
        self._attempt = asyncio.create_task(self._read(), name="jwt-keys-attempt")
        return self._attempt

    async def read(self) -> KeySet:
        """Return the keys as the issuer shows them now.

        Raises:
            KeySetUnusable: it does not, or takes longer than ``READ_S``.
        """
        try:
            async with asyncio.timeout(READ_S):
                return await (self._from_file() if self._settings.jwks_url is None else self._from_url())
        except TimeoutError:
            raise KeySetUnusable(f"no answer within {READ_S:.0f} s") from None
        except (aiohttp.ClientError, ssl.SSLError) as error:
            raise KeySetUnusable(str(error) or type(error).__name__) from error
        except OSError as error:
            raise KeySetUnusable(why_unreadable(error)) from error

    async def _read(self) -> None:
        try:
            keys = await self.read()
        except KeySetUnusable as error:
            self._failed(str(error))
        except Exception as error:  # without an end of the attempt, there would be none after it
            _logger.exception("the key set could not be read")
            self._failed(type(error).__name__)
        else:
            self._use(keys)
        finally:
            self._attempt = None

    def _use(self, keys: KeySet) -> None:
        if keys.thumbprints != self._thumbprints:
            _logger.info("read the key set of %s; keys: %d", self._settings.issuer, len(keys.keys))
        self._keys, self._thumbprints = keys, keys.thumbprints
        self._read_at, self._failing_since, self.trouble = self._monotonic(), None, None
        self._repeats.clear()

    def _failed(self, why: str) -> None:
        now = self._monotonic()
        self.trouble = why
        self._has_failed.set()
        self._failing_since = now if self._failing_since is None else self._failing_since
        count = self._repeats.say(why, now)
        if count is not None:
            place = self._settings.jwks_url or self._settings.jwks_file
            kept = moment(self.kept_until())
            until = f"the keys stay in force until {kept}" if self.is_known else "no JWT is taken"
            _logger.warning("the key set %s cannot be read, %s: %s%s", place, until, why, left_out(count))

    async def _from_file(self) -> KeySet:
        if self._blocked is not None:
            if not self._blocked.done():
                raise TimeoutError  # a disk that hangs may keep one thread, and no more
            self._blocked = None
        reading = asyncio.ensure_future(asyncio.to_thread(self._parse_file))
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # one that no one awaits
        self._blocked = reading
        keys = await asyncio.shield(reading)
        self._blocked = None
        return keys

    def _parse_file(self) -> KeySet:
        assert self._settings.jwks_file is not None, "checked with the configuration"
        with open(self._settings.jwks_file, "rb") as file:
            return read_key_set(file.read(KEY_SET_BYTES_MAX + 1), self._settings.algorithms)

    async def _from_url(self) -> KeySet:
        settings = self._settings
        assert settings.jwks_url is not None, "asked before"
        context = await asyncio.to_thread(ssl.create_default_context, cafile=settings.ca_file)
        connector = aiohttp.TCPConnector(ssl=context, force_close=True)
        # A proxy sees the inside of plain HTTP, which is for an issuer on this machine, and could answer in its place.
        may_use_proxy = settings.jwks_url.startswith("https:")
        async with (
            aiohttp.ClientSession(connector=connector, trust_env=may_use_proxy) as session,
            session.get(settings.jwks_url, allow_redirects=False, headers={"Accept": "application/json"}) as answer,
        ):
            if answer.status != 200:
                raise KeySetUnusable(f"the issuer answered with HTTP status {answer.status}")
            data = bytearray()
            async for part in answer.content.iter_any():
                data += part
                if len(data) > KEY_SET_BYTES_MAX:
                    break
        return await asyncio.to_thread(read_key_set, bytes(data), settings.algorithms)
