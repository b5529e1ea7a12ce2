"""Reload of files that change: users, access rules, certificates."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from weft.config.machine import why_unreadable
from weft.network.admission import ReloadCounters

log = logging.getLogger(__name__)

Content = TypeVar("Content")


class Watched(NamedTuple, Generic[Content]):
    """Files that are read together."""

    what: str
    """For log lines: ``users``."""
    paths: Sequence[str]
    read: Callable[[], Content]
    """Function that reads and checks the files, in a thread. ``OSError`` and ``ValueError`` mean that they cannot be
    used."""
    use: Callable[[Content], None]
    """Function that applies the content, on the event loop's thread."""


class Reloads:
    """A watch over files. Unusable files are reported once, and their former content stays in use."""

    def __init__(self, counters: ReloadCounters) -> None:
        self._counters = counters
        self._watched: list[Watched[Any]] = []
        self._states: list[object] = []
        self._lock = asyncio.Lock()

    @property
    def watched(self) -> list[str]:
        """Return the names of the watched files, for log lines."""
        return [watched.what for watched in self._watched]

    def add(self, watched: Watched[Content]) -> None:
        """Watch files whose present content is already in use."""
        self._watched.append(watched)
        self._states.append(file_state(watched.paths))

    async def check(self, *, all_of_them: bool = False) -> None:
        """Read again the files that have changed since the last read, or all of them."""
        async with self._lock:
            for position, watched in enumerate(self._watched):
                state = file_state(watched.paths)
                if all_of_them or state != self._states[position]:
                    self._states[position] = state
                    await self._reload(watched)

    async def _reload(self, watched: Watched[Any]) -> None:
        try:
            content = await asyncio.to_thread(watched.read)
        except (OSError, ValueError) as error:
            self._counters.reload_failures += 1
            why = str(error)
            if isinstance(error, OSError) and error.filename:
                why = f"{error.filename}: {why_unreadable(error)}"
            log.error("the %s cannot be used, the former ones stay in use: %s", watched.what, why)
            return
        watched.use(content)
        self._counters.reloads += 1
        log.info("read the %s again", watched.what)


def file_state(paths: Sequence[str]) -> object:
    """Return a value that differs after every change, also of owner and permissions."""
    states: list[object] = []
    for path in paths:
        try:
            stat = os.stat(path)
            states.append((stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino))
        except OSError as error:
            states.append((error.errno,))
    return states


# A bearer token in a file.

TOKEN_BYTES_MAX = 8192
"""Longest file: JSON Web Tokens of some issuers list all groups of their bearer."""


def read_token(path: str) -> str:
    """Return the token in the file ``path``. Blocks; raises ``OSError``, ``ValueError``."""
    with open(path, "rb") as file:
        return token_in(file.read(TOKEN_BYTES_MAX + 1), path)


_QUOTES = "\"'`"


def token_in(data: bytes, path: str) -> str:
    """Return the token in the content of ``path``. Raises ``ValueError``."""
    words = data.decode("ascii", "replace").split()
    if not words:
        raise ValueError(f"{path} is empty: expected one token on one line. Write it there")
    if len(data) > TOKEN_BYTES_MAX:
        raise ValueError(f"{path} has more than {TOKEN_BYTES_MAX} bytes: expected one token on one line")
    if len(words) > 1:
        raise ValueError(f"{path}: expected one token on one line, got several words. Keep the token alone")
    if words[0][0] in _QUOTES:
        raise ValueError(f"{path}: the token begins with a quote ({words[0][0]}): write it without quotes")
    if not words[0].isprintable() or "\ufffd" in words[0]:
        raise ValueError(f"{path}: expected one token on one line, got characters that no token has. Write it again")
    return words[0]
