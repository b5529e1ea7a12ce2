"""The table's own log as objects: its durable part, and entries half written because of a power cut.

deltalake never syncs its files. On a directory, a power cut may therefore keep version n+1 and lose version n, and with
it rows that the position of n+1 claims. So before a commit on top of a version, every entry up to it is synced; at most
the newest entry can then be torn, and ``mend`` removes it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from hashlib import sha256
from typing import Any

import msgspec

from weft.storage.object_store import NotFound, ObjectStore

_logger = logging.getLogger(__name__)
_PARQUET_MAGIC = b"PAR1"
ACTIONS_KEY = "weftActions"
"""Key in a commit's info: the number of lines that follow, by which an entry cut short by a power cut is recognised."""
ENTRIES_MAX = 4
"""Maximum number of entries that are read for transactions."""


class _Transaction(msgspec.Struct):
    appId: str  # noqa: N815  (Delta's name)
    version: int


class _Line(msgspec.Struct):
    txn: _Transaction | None = None


class _LastCheckpoint(msgspec.Struct):
    version: int


class TableLog:
    """The ``_delta_log`` of the table at ``key``. Every method may raise ``StoreError``."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._folder = f"{key}/_delta_log"
        self._synced: int | None = None

    async def checkpoint_version(self) -> int:
        """Return the version of the newest checkpoint that the log names; -1 without one."""
        try:
            data = (await self._store.get(f"{self._folder}/_last_checkpoint")).data
            return msgspec.json.decode(data, type=_LastCheckpoint).version
        except (NotFound, msgspec.DecodeError):
            return -1

    async def entry_hash(self, version: int) -> bytes | None:
        """Return a hash of the entry of a version; None if it is missing: the table was moved away, or the log cleaned
        up behind a checkpoint."""
        try:
            return sha256((await self._store.get(self._entry(version))).data).digest()
        except NotFound:
            return None

    async def recent_transactions(self, version: int, wanted: Collection[str]) -> dict[str, int]:
        """Return the last versions of some applications' transactions, as far as they are in the newest entries.

        Args:
            version: newest version to read; only ``ENTRIES_MAX`` entries are read.
        """
        found: dict[str, int] = {}
        for number in range(version, max(-1, version - ENTRIES_MAX), -1):
            if len(found) == len(wanted):
                break
            try:
                entry = (await self._store.get(self._entry(number))).data
            except NotFound:
                break
            for line in entry.splitlines():
                txn = msgspec.json.decode(line, type=_Line).txn if b'"txn"' in line else None
                if txn is not None and txn.appId in wanted:
                    found.setdefault(txn.appId, txn.version)
        return found

    async def sync(self, version: int) -> None:
        """Make every entry up to ``version`` durable, including those of other writers."""
        if self._synced is None:
            self._synced = await self.sync_checkpoint()
        for number in range(self._synced + 1, version + 1):
            # Another node may have cleaned up behind a checkpoint meanwhile.
            with contextlib.suppress(NotFound):
                await self._store.sync(self._entry(number))
            self._synced = number

    async def sync_checkpoint(self) -> int:
        """Make the newest checkpoint durable. Return its version."""
        version = await self.checkpoint_version()
        if version >= 0:
            for part in await self._parts(version):
                await self._store.sync(part)
            with contextlib.suppress(NotFound):
                await self._store.sync(f"{self._folder}/_last_checkpoint")
        return version

    async def mend(self) -> bool:
        """Remove files that are half written because of a power cut. Return whether there were any."""
        # Removing them loses nothing: a checkpoint repeats the entries, and the rows of a removed entry are written
        # again. Only its Parquet files become orphans.
        torn = [*await self._torn_checkpoint(), *await self._torn_entry()]
        for key in torn:
            _logger.warning("removing %s, which was not written to its end", key)
            await self._store.delete(key)
        return bool(torn)

    def _entry(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"

    async def _parts(self, version: int) -> list[str]:
        # "-" sorts before ".", so entry n's own name comes before its checkpoints.
        listed = await self._store.list(self._folder, after=f"{self._folder}/{version:020d}", limit=100)
        return [item.key for item in listed if item.key.startswith(f"{self._folder}/{version:020d}.checkpoint.")]

    async def _torn_checkpoint(self) -> list[str]:
        version = await self.checkpoint_version()
        parts = await self._parts(version) if version >= 0 else []
        torn = []
        for part in parts:
            if part.endswith(".parquet") and await self._store.get_range(part, -4, 4) != _PARQUET_MAGIC:
                torn.append(part)
        # The pointer is removed first: a pointer to a missing checkpoint makes the table unreadable.
        return [f"{self._folder}/_last_checkpoint", *torn] if torn or (version >= 0 and not parts) else []

    async def _torn_entry(self) -> list[str]:
        after = f"{self._folder}/{max(0, await self.checkpoint_version()):020d}"
        entries = [item.key for item in await self._store.list(self._folder, after=after) if item.key.endswith(".json")]
        if not entries or whole_entry((await self._store.get(entries[-1])).data):
            return []
        return entries[-1:]


def whole_entry(data: bytes) -> bool:
    """Return whether a log entry is complete, as far as its own lines show."""
    try:
        lines = [msgspec.json.decode(line) for line in data.splitlines() if line]
    except msgspec.DecodeError:
        return False
    if not lines or not all(isinstance(line, dict) for line in lines):
        return False
    info: dict[str, Any] = next((line["commitInfo"] for line in lines if isinstance(line.get("commitInfo"), dict)), {})
    actions = info.get(ACTIONS_KEY)
    return actions is None or actions == len(lines) - 1
