"""The log of a Delta table as objects: reading it without the table's files, commits, and what a power cut left.

A commit is one object that must not exist yet: the store decides who wins a version, and what is there is durable.
Others write entries as well: deltalake makes tables and checkpoints for Weft, and operators change tables with Spark.
deltalake never syncs its files. On a directory, a power cut may therefore keep version n+1 and lose version n, and with
it rows that the position of n+1 claims. So before a commit on top of a version, every entry up to it is synced; at most
the newest entry can then be torn, and ``mend`` removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import IO, Any, NamedTuple, cast

import msgspec

from weft.storage.object_store import AlreadyExists, Listed, NotFound, ObjectStore
from weft.storage.object_store.protocol import ObjectFile
from weft.storage.table.actions import (
    ACTIONS_KEY,
    DataFile,
    DeltaState,
    Lines,
    StateBuilder,
    TableConflict,
    TableError,
    add_action,
    encode_entry,
    remove_action,
    txn_actions,
)
from weft.storage.table.files import FileFollower, take_facts

# Demands of a table on its writers, which of them appends and joins of files meet, and what others may change before
# a commit.
#
# Delta protocol, "Writer Requirements" and "Table Features". A feature that a table lists and does not use, such as
# the constraints that writer version 3 may have, asks nothing of a writer.

FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",  # appends and rewrites without changes need no change files
        "checkConstraints",
        "columnMapping",
        "deletionVectors",  # new files have none
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "vacuumProtocolCheck",
    }
)
"""Features that may be listed. Those that compute, check or rename values are refused where a table uses them."""
WRITER_VERSION_MAX = 7
_COLUMN_DEMANDS = ("delta.generationExpression", "delta.identity", "delta.invariants")


_FEATURES_OF_VERSIONS = (
    (2, "appendOnly"),
    (2, "invariants"),
    (3, "checkConstraints"),
    (4, "changeDataFeed"),
    (4, "generatedColumns"),
    (5, "columnMapping"),
    (6, "identityColumns"),
)
"""Writer versions before 7 that have a feature without listing it."""
_LOCAL_TIME, _LOCAL_TIME_FEATURE = "timestamp_ntz", "timestampNtz"


def _with_local_times(state: DeltaState, metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the action by which a table asks its readers to know times without a zone; none if its metadata has no
    such column, or if it asks already.

    Engines refuse a table that has such a column and does not ask.
    """
    protocol = state.protocol
    reads, writes = protocol.readerFeatures or [], protocol.writerFeatures or []
    is_asked = _LOCAL_TIME_FEATURE in reads and _LOCAL_TIME_FEATURE in writes
    fields = msgspec.json.decode(metadata["schemaString"])["fields"]
    if is_asked or not any(_has_local_time(field["type"]) for field in fields):
        return []
    if protocol.minWriterVersion < WRITER_VERSION_MAX:
        writes = [name for version, name in _FEATURES_OF_VERSIONS if version <= protocol.minWriterVersion]
    if protocol.minReaderVersion == 2:
        reads = ["columnMapping"]
    action = {
        "minReaderVersion": 3,
        "minWriterVersion": WRITER_VERSION_MAX,
        "readerFeatures": [*reads, _LOCAL_TIME_FEATURE],
        "writerFeatures": [*dict.fromkeys([*writes, _LOCAL_TIME_FEATURE])],
    }
    return [{"protocol": action}]


def _has_local_time(kind: Any) -> bool:
    if isinstance(kind, dict):
        return any(map(_has_local_time, [kind.get("elementType"), kind.get("keyType"), kind.get("valueType")]))
    return bool(kind == _LOCAL_TIME)


def demands_of(state: DeltaState) -> list[str]:
    """Return the demands of a table that this writer does not meet, by the names that Delta has for them."""
    protocol, properties = state.protocol, state.properties()
    if protocol.minWriterVersion > WRITER_VERSION_MAX:
        return [f"minWriterVersion {protocol.minWriterVersion}"]
    # An unknown feature may forbid what this writer does, so it is named and refused.
    found = set(protocol.writerFeatures or ()) - FEATURES
    found |= {name for name in properties if name.startswith("delta.constraints.")}
    if properties.get("delta.columnMapping.mode", "none") != "none":
        found.add("delta.columnMapping.mode")
    for column in state.fields():
        metadata = column.get("metadata") or {}
        found |= {f"{name} ({column['name']})" for name in metadata if name.startswith(_COLUMN_DEMANDS)}
    partitions = state.metadata.get("partitionColumns") or []
    return sorted([*found, *(f"partition by {name}" for name in partitions)])


def check_writable(state: DeltaState, key: str) -> None:
    """Check that rows can be added to a table.

    Raises:
        TableError: the table demands of its writers what this one does not do.
    """
    if demands := demands_of(state):
        raise TableError(
            f"{key} demands {', '.join(demands)} of its writers, which Weft does not do. Remove that from the table, "
            "or move the table away: the hub makes it again from the log"
        )


def check_unconcerned(key: str, state: DeltaState, now: StateBuilder, applications: Collection[str]) -> None:
    """Check that a commit that was decided on a state is still right on top of a later version.

    Raises:
        TableConflict: it is not.
    """
    if (now.protocol, now.metadata) != (state.protocol, state.metadata):
        raise TableConflict(f"{key}: version {now.version} has another schema, properties or protocol")
    # Another maker has written these rows. Committing ours as well would double them.
    moved = [name for name in applications if now.transactions.get(name) != state.transactions.get(name)]
    if moved:
        raise TableConflict(f"{key}: another writer has moved the position of {moved[0]}")
    if now.removed:
        raise TableConflict(f"{key}: another writer has removed {min(now.removed)}")


_logger = logging.getLogger(__name__)
_PARQUET_MAGIC = b"PAR1"
_CHECKPOINT = re.compile(r"/(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet$")
_PART = re.compile(r"\.checkpoint\.\d{10}\.\d{10}\.parquet$")
PIECE_BYTES = 1 << 20
"""Bytes of an entry that are read at a time: what others commit may name any number of files."""
READ_AHEAD = 8
"""Maximum number of entries requested at once."""
LOST_MAX = 64
"""Number of versions of others after which a commit is given up: it is decided again on a new reading."""
PARTS_MAX = 1000
"""Maximum number of parts of a checkpoint."""
NAMES_MAX = 256
"""Number of versions before one among which a checkpoint is looked for first."""
NAMES_OF = 8
"""Number of objects of one version that such a search counts on: its entry, checksum, and parts of a checkpoint."""
ACTIONS_AT_ONCE = 128
"""Number of actions of an entry that are taken in one step: a follower may hold predicates against each file."""
READINGS_MAX = 3
"""Number of times that a reading starts over because the log was cleaned up under it."""


class LastCheckpoint(msgspec.Struct):
    """The checkpoint that a log names as its newest."""

    version: int = -1
    size: int = 0
    """Number of its actions, nearly all of them files."""


def decode_pointer(data: bytes) -> LastCheckpoint:
    """Return the checkpoint that ``_last_checkpoint`` names; of version -1 if it is damaged: a log is whole without."""
    try:
        return msgspec.json.decode(data, type=LastCheckpoint)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return LastCheckpoint()


class TableLog:
    """The ``_delta_log`` of the table at ``key``. Every method may raise ``StoreError``.

    Args:
        applications: beginning of the applications whose transactions are read.
    """

    def __init__(self, store: ObjectStore, key: str, applications: str = "weft/") -> None:
        self._store = store
        self._key = key
        self._folder = f"{key}/_delta_log"
        self._applications = applications
        self._synced: int | None = None

    async def read(self) -> DeltaState | None:
        """Return the newest version; None if there is no table.

        It takes the newest checkpoint's facts and the entries since, in a few megabytes however large they are.

        Raises:
            TableError: the log is damaged, or has a form that cannot be read.
        """
        for _ in range(READINGS_MAX):
            builder = StateBuilder(self._applications)
            with contextlib.suppress(NotFound):
                if (start := await self._start()) >= 0:
                    facts = partial(take_facts, take=builder.take)
                    builder.entry_hash = await self._read_checkpoint(start, facts)
                    builder.version = start
                await self._read_on(builder)
            # An entry is missing at the end of the log, and where it was cleaned up. A commit there would hide all
            # that comes after it. A newer checkpoint is named before it is cleaned up.
            if await self.checkpoint_version() <= builder.version:
                return builder.state() if builder.version >= 0 else None
        raise self._outrun()

    def _outrun(self) -> TableError:
        return TableError(
            f"{self._key}: its log was cleaned up {READINGS_MAX} times while it was read; try again later"
        )

    async def advance(self, state: DeltaState) -> DeltaState | None:
        """Return the newest version, read on from an earlier one; None if only a new reading shows it: the table was
        moved away, or its log was cleaned up.

        Raises:
            TableError: as ``read``.
        """
        # The same number with other content is another table, which was made after this one was moved away.
        if not await self.is_current(state):
            return None
        builder = StateBuilder.of(state, self._applications)
        await self._read_on(builder)
        return builder.state() if await self.checkpoint_version() <= builder.version else None

    def anew(self) -> TableLog:
        """Return the log of a table that is made where another one was."""
        return TableLog(self._store, self._key, self._applications)

    async def entry_hash(self, version: int) -> bytes:
        """Return the hash of a version's entry; empty if it is gone. Raises StoreError."""
        try:
            return await self._hash(version)
        except NotFound:
            return b""

    async def is_current(self, state: DeltaState | FileFollower[Any]) -> bool:
        """Return whether the entry of a version is in the log: the table was not moved away, and no other is there."""
        digest = await self.entry_hash(state.version)
        return bool(digest) and digest == state.entry_hash

    async def follow(self, files: FileFollower[Any]) -> None:
        """Bring a follower up to the newest version; it starts over if the table is another one by now. Of a table that
        is not there, its version is -1.

        Raises:
            TableError: as ``read``.
        """
        for _ in range(READINGS_MAX):
            if files.version >= 0 and not await self.is_current(files):
                files.clear()
            with contextlib.suppress(NotFound):
                if files.version < 0 and (start := await self._start()) >= 0:
                    files.entry_hash = await self._read_checkpoint(start, files.read_checkpoint)
                    files.version = start
                await self._read_on(files)
            if await self.checkpoint_version() <= files.version:
                return
            files.clear()
        raise self._outrun()

    async def follow_to(self, files: FileFollower[Any], version: int) -> bool:
        """Bring a follower that has read nothing to one version. Return False if the log no longer has all of its
        entries, or does not have it yet.

        Raises:
            TableError: as ``read``.
        """
        with contextlib.suppress(NotFound):
            if (start := await self._checkpoint_before(version)) >= 0:
                files.entry_hash = await self._read_checkpoint(start, files.read_checkpoint)
                files.version = start
            await self._read_on(files, version)
        return files.version == version

    async def _checkpoint_before(self, version: int) -> int:
        """Return the newest checkpoint up to a version; -1 without one."""
        newest = await self.checkpoint_version()
        if 0 <= newest <= version:
            return newest
        back = NAMES_MAX
        while True:
            first = max(0, version - back)
            names = await self._store.list(self._folder, after=f"{self._folder}/{first:020d}", limit=NAMES_OF * back)
            found = [int(name[1]) for item in names if (name := _CHECKPOINT.search(item.key))]
            if at := [each for each in found if each <= version]:
                return at[-1]
            if not first:
                return -1
            back *= 4

    async def append(
        self, state: DeltaState, files: Sequence[DataFile], transactions: Mapping[str, int], now_ms: int
    ) -> DeltaState:
        """Add files and move the positions of applications, in one version. Return it; it is durable.

        Versions of others that came after ``state`` do not concern an append, unless they change what it relies on: the
        same transactions, the schema, the properties or the protocol.

        Raises:
            TableConflict: they did. Only a new reading shows whether an earlier attempt of this very commit did it.
            TableError: the table demands of its writers what this one does not do.
            StoreError: the outcome is unknown; a new reading shows it.
        """
        check_writable(state, self._key)
        actions = [*(add_action(file, data_change=True) for file in files), *txn_actions(transactions)]
        # A blind append reads nothing of the table, which lets commits of other engines, such as an OPTIMIZE, continue
        # beside it.
        entry = encode_entry("WRITE", {"mode": "Append"}, actions, now_ms, blind=True)
        return await self.commit(state, entry, transactions.keys(), ())

    async def replace(
        self, state: DeltaState, old: Sequence[DataFile], new: DataFile, now_ms: int, *, listed: int
    ) -> DeltaState:
        """Replace files by one file with the same rows. Return the version; it is durable.

        Args:
            listed: version that had the files. Only entries after ``state`` are looked through for their removal.

        Raises:
            TableConflict: another writer removed one of them, or may have done so before ``state``, or changed the
                table as for ``append``.
            TableError, StoreError: as ``append``.
        """
        check_writable(state, self._key)
        # Versions up to ``state`` are not looked through again: one that the caller has not seen may have joined the
        # same files, whose rows would then be there twice.
        if listed < state.version:
            raise TableConflict(f"{self._key}: files of version {listed} are to be replaced in version {state.version}")
        # No rows change, so a query that follows the table as a stream is not given them again.
        actions = [add_action(new, data_change=False), *(remove_action(file, now_ms) for file in old)]
        entry = encode_entry("OPTIMIZE", {"predicate": "[]"}, actions, now_ms, blind=False)
        return await self.commit(state, entry, (), [file.path for file in old])

    async def alter(self, state: DeltaState, operation: str, metadata: Mapping[str, Any], now_ms: int) -> DeltaState:
        """Change a table's schema or properties. Return the version; it is durable.

        Args:
            operation: name for the table's history, such as ``ADD COLUMN``.
            metadata: the whole action ``metaData``.

        Raises:
            TableConflict, TableError, StoreError: as ``append``.
        """
        check_writable(state, self._key)
        actions = [*_with_local_times(state, metadata), {"metaData": metadata}]
        entry = encode_entry(operation, {}, actions, now_ms, blind=False)
        return await self.commit(state, entry, (), ())

    async def commit(
        self, state: DeltaState, entry: bytes, applications: Collection[str], removes: Sequence[str]
    ) -> DeltaState:
        """Write an entry after a state, or after what others wrote since, if that does not concern it."""
        builder = StateBuilder.of(state, self._applications, removes)
        # A lost race costs one entry to read. The files are kept, unless the versions in between concern this commit.
        while builder.version - state.version <= LOST_MAX:
            await self.sync(builder.version)
            try:
                # Create-if-absent decides: one writer gets the version, and it is durable when the call returns.
                await self._store.create(self._entry(builder.version + 1), entry)
            except AlreadyExists:
                if not await self._read_on(builder):
                    raise TableConflict(f"{self._key}: version {builder.version + 1} came and went") from None
                check_unconcerned(self._key, state, builder, applications)
                continue
            builder.version += 1
            builder.entry_hash = sha256(entry).digest()
            self._synced = builder.version
            cutter = Lines(files=False)
            for action in [*cutter.take(entry), *cutter.finish()]:
                builder.take(action)
            return builder.state()
        raise TableConflict(f"{self._key}: others made {LOST_MAX} versions meanwhile")

    async def _read_on(self, builder: StateBuilder | FileFollower[Any], last: int | None = None) -> int:
        """Read the entries after a version. Return their number.

        Args:
            last: version of the last one to read; None for the newest.
        """
        first, ahead = builder.version + 1, 1
        while True:
            numbers = range(builder.version + 1, builder.version + 1 + ahead)
            if last is not None:
                numbers = numbers[: max(0, last - builder.version)]
                if not numbers:
                    return builder.version + 1 - first
            for number, piece in zip(numbers, await asyncio.gather(*map(self._first_piece, numbers)), strict=True):
                if piece is None:
                    return number - first
                await self._take_entry(builder, number, piece)
                await asyncio.sleep(0)  # a piece takes some milliseconds
            # Mostly there is no new entry, which one request shows. A reader that is far behind asks for several at a
            # time.
            ahead = min(READ_AHEAD, 2 * ahead)

    async def _take_entry(self, builder: StateBuilder | FileFollower[Any], number: int, first: bytes) -> None:
        lines, digest = Lines(builder.reads_files), sha256()
        try:
            async for piece in self._pieces(number, first):
                digest.update(piece)
                for at, action in enumerate(lines.take(piece), 1):
                    builder.take(action)
                    if at % ACTIONS_AT_ONCE == 0:
                        await asyncio.sleep(0)
            for action in lines.finish():
                builder.take(action)
        except TableError as error:
            raise TableError(f"{self._entry(number)}: {error}") from error
        builder.version, builder.entry_hash = number, digest.digest()

    async def _first_piece(self, number: int) -> bytes | None:
        try:
            return await self._store.get_range(self._entry(number), 0, PIECE_BYTES)
        except NotFound:
            return None

    async def _pieces(self, number: int, first: bytes | None = None) -> AsyncIterator[bytes]:
        """Yield the bytes of an entry. Raises NotFound."""
        at, piece = 0, first
        while True:
            if piece is None:
                piece = await self._store.get_range(self._entry(number), at, PIECE_BYTES)
            yield piece
            if len(piece) < PIECE_BYTES:
                return
            at, piece = at + len(piece), None

    async def _listed_checkpoint(self) -> int:
        """Return the newest checkpoint of a log whose pointer to it is missing; -1 without one."""
        keys = (item.key.rpartition("/")[2] for item in await self._store.list(self._folder))
        return max((int(name[:20]) for name in keys if name.endswith(".checkpoint.parquet")), default=-1)

    async def _start(self) -> int:
        """Return the version of the checkpoint at which a reading begins; -1 if it begins at version 0."""
        version = await self.checkpoint_version()
        is_there = version >= 0 or await self._first_piece(0) is not None
        # The pointer may have been lost although checkpoints are there; an empty answer would make a new table over the
        # old one.
        return version if is_there else await self._listed_checkpoint()

    async def _read_checkpoint(self, version: int, read: Callable[[IO[bytes], str], None]) -> bytes:
        """Give each part of a checkpoint to ``read``, in a thread. Return the hash of the version's entry."""
        loop = asyncio.get_running_loop()
        for part in self._usable(version, await self._listed(version)):
            file = ObjectFile(self._store, part.key, part.size, loop)
            await asyncio.to_thread(read, cast("IO[bytes]", file), part.key)
        return await self.entry_hash(version)  # empty if it was cleaned up behind its checkpoint

    def _usable(self, version: int, listed: Sequence[Listed]) -> list[Listed]:
        for item in listed:
            if item.key.endswith(f"{version:020d}.checkpoint.parquet"):
                return [item]
        parts = [item for item in listed if _PART.search(item.key)]
        if not parts or len(parts) != int(parts[0].key[-18:-8]):
            raise TableError(
                f"{self._key}: the checkpoint of version {version} is missing, or has a form that Weft cannot read. "
                "Weft reads checkpoints in Parquet of Delta's version 1"
            )
        return parts

    async def _hash(self, version: int) -> bytes:
        """Return a hash of an entry. Raises NotFound."""
        digest = sha256()
        async for piece in self._pieces(version):
            digest.update(piece)
        return digest.digest()

    async def last_checkpoint(self) -> LastCheckpoint:
        """Return the newest checkpoint that the log names; of version -1 without one."""
        with contextlib.suppress(NotFound):
            return decode_pointer((await self._store.get(f"{self._folder}/_last_checkpoint")).data)
        return LastCheckpoint()

    async def checkpoint_version(self) -> int:
        """Return the version of the newest checkpoint that the log names; -1 without one."""
        return (await self.last_checkpoint()).version

    async def sync(self, version: int) -> None:
        """Make every entry up to ``version`` durable, including those of other writers."""
        if self._synced is None:
            self._synced = await self.sync_checkpoint()
        for number in range(self._synced + 1, version + 1):
            # Another node may have cleaned up behind a checkpoint meanwhile.
            with contextlib.suppress(NotFound):
                # delta-rs syncs nothing on a directory, so what others have committed is synced before this commit
                # stands on it.
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

    async def _listed(self, version: int) -> list[Listed]:
        """Return the objects of a version's checkpoint, of one part or of several."""
        # "-" sorts before ".", so entry n's own name comes before its checkpoints.
        listed = await self._store.list(self._folder, after=f"{self._folder}/{version:020d}", limit=PARTS_MAX)
        return [item for item in listed if item.key.startswith(f"{self._folder}/{version:020d}.checkpoint.")]

    async def _parts(self, version: int) -> list[str]:
        return [item.key for item in await self._listed(version)]

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
        # Only the last entry can be torn: each writer syncs the entries before its own.
        return [] if not entries or await self._is_whole(int(entries[-1][-25:-5])) else entries[-1:]

    async def _is_whole(self, version: int) -> bool:
        """Return whether an entry is complete, as far as its own lines show."""
        lines, announced, count = Lines(files=True), None, 0
        try:
            async for piece in self._pieces(version):
                for action in lines.take(piece):
                    count, announced = count + 1, announced or action.commitInfo
            for action in lines.finish():
                count, announced = count + 1, announced or action.commitInfo
        except TableError:
            return False
        expected = (announced or {}).get(ACTIONS_KEY)
        return count > 0 and (expected is None or expected == count - 1)


# Commits that change rows of a table: files that others replace, and files that are removed.


class ChangeFile(NamedTuple):
    """A file of a table's change feed (Delta protocol, "Add CDC File")."""

    path: str
    size: int


class Rewrite(NamedTuple):
    """Changes of one version."""

    operation: str
    """Name for the table's history."""
    old: Sequence[DataFile]
    new: Sequence[DataFile]
    transactions: Mapping[str, int]
    """Application -> version, set with the change."""
    changes: Sequence[ChangeFile] = ()
    """Files of the change feed; without any, its readers take rows of old files as deleted and rows of new ones as
    inserted."""


async def rewrite(log: TableLog, key: str, state: DeltaState, what: Rewrite, now_ms: int) -> DeltaState:
    """Change rows of a table in one version. Return it; it is durable.

    Args:
        key: the table's folder in the store.

    Raises:
        TableConflict, TableError, StoreError: as ``TableLog.replace``.
    """
    check_writable(state, key)
    changes = [
        {"cdc": {"path": each.path, "partitionValues": {}, "size": each.size, "dataChange": False}}
        for each in what.changes
    ]
    actions = [
        *(remove_action(file, now_ms, data_change=True) for file in what.old),
        *(add_action(file, data_change=True) for file in what.new),
        *changes,
        *txn_actions(what.transactions),
    ]
    entry = encode_entry(what.operation, {}, actions, now_ms, blind=False)
    return await log.commit(state, entry, what.transactions.keys(), [file.path for file in what.old])
