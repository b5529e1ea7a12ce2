"""The cluster log: declared facts of a hub (docs/reference/formats/cluster-log.md). Entries, the fold over them, the
log in the store, and its follower."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from weft.bounds.scheduling import BackgroundTask
from weft.config.limits import FACT_NAME_CHARACTERS_MAX, REASON_CHARACTERS_MAX
from weft.config.log_lines import Repeats, left_out
from weft.protocols.batch import Buffer
from weft.protocols.checksum import crc32c
from weft.protocols.chunk_index import check_understood
from weft.protocols.errors import CodecError, Corrupt, Truncated, UnsupportedVersion
from weft.protocols.ranges import U32, U64, Nanoseconds, unpack
from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, StoreError
from weft.storage.object_store.protocol import naming

# Bytes of an entry of the cluster log (docs/reference/formats/cluster-log.md): one declared fact, or several.

ENTRY_MAGIC, SNAPSHOT_MAGIC = b"WFE", b"WFA"
VERSION = 1
_HEADER = struct.Struct("<4sII")
HEADER_BYTES = _HEADER.size
SEVERAL = 1
"""Bit of an entry with several facts."""
UNDERSTOOD = SEVERAL
"""Bits of ``must_understand`` that this release knows."""
KIND_CHARACTERS_MAX = 32
DOCUMENT_BYTES_MAX = 64 << 10
"""Longest document of a fact: a thousand names of edges."""
BY_CHARACTERS_MAX = 256
ORIGIN_CHARACTERS_MAX, COMMAND_CHARACTERS_MAX = 256, 128
FACTS_MAX = 1024
"""Maximum number of facts of an entry."""
FACTS_BYTES_MAX = 320 << 10
"""Maximum size of the documents of several facts: those of a thousand tokens of edges."""
NAMES_CHARACTERS_MAX = 16 << 10
"""Maximum length of the names of several facts together: the line of the entry in the record of acts has them all."""
ENTRY_BYTES_MAX = 512 << 10
"""Longest entry: documents, texts in UTF-8, and some bytes for each field."""
_KIND = re.compile(rf"[a-z][a-z0-9-]{{0,{KIND_CHARACTERS_MAX - 1}}}")

ClusterId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Text = Annotated[str, Meta(max_length=FACT_NAME_CHARACTERS_MAX)]


NODE = "node"
"""Kind of the facts about processes and machines: drains."""


class NamedFact(NamedTuple):
    """A fact that an entry declares or withdraws."""

    kind: Annotated[str, Meta(max_length=KIND_CHARACTERS_MAX)]
    name: Text
    document: Annotated[bytes, Meta(max_length=DOCUMENT_BYTES_MAX)] | None


class Declaration(msgspec.Struct, frozen=True, array_like=True):
    """An entry: from here on, the fact (kind, name) has this document."""

    cluster_id: ClusterId
    n: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    """Number of the entry, from 1 on, and the version of the fact that it declares."""
    previous: U32
    """CRC-32C of the bytes of entry n - 1; 0 in the first."""
    must_understand: U64
    """Bits of the features that a reader has to know to use this entry and those behind it."""
    kind: Annotated[str, Meta(max_length=KIND_CHARACTERS_MAX)]
    name: Text
    document: Annotated[bytes, Meta(max_length=DOCUMENT_BYTES_MAX)] | None
    """JSON, whose fields depend on the kind; None withdraws the fact."""
    at: Nanoseconds
    """Moment by the clock of the writer, for people."""
    by: Annotated[str, Meta(max_length=BY_CHARACTERS_MAX)]
    """The user and the machine that wrote it, or the name that the user gave."""
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]
    nonce: U64
    """Random number by which a writer recognises its own entry."""
    origin: Annotated[str, Meta(max_length=ORIGIN_CHARACTERS_MAX)] = ""
    """The user and the machine of the process, as it claims, or the address of the client of the API."""
    command: Annotated[str, Meta(max_length=COMMAND_CHARACTERS_MAX)] = ""
    """The words of the command, or method and path of the request."""
    more: Annotated[list[NamedFact], Meta(max_length=FACTS_MAX - 1)] = []
    """Further facts, none twice. All facts of an entry change at once."""

    @property
    def facts(self) -> list[NamedFact]:
        """Return all facts of the entry, in their order."""
        return [NamedFact(self.kind, self.name, self.document), *self.more]


class _EntryHead(msgspec.Struct, frozen=True, array_like=True):
    """The part of an entry that no release changes."""

    cluster_id: msgspec.Raw
    n: msgspec.Raw
    previous: msgspec.Raw
    must_understand: U64


_ENTRY_DECODER = msgspec.msgpack.Decoder(Declaration)
_ENTRY_HEAD_DECODER = msgspec.msgpack.Decoder(_EntryHead)


def encode_entry(entry: Declaration) -> bytes:
    """Return the bytes of an entry. What is empty at its end is left out."""
    left_out = 0 if entry.more else 1 if entry.origin or entry.command else 3
    fields = msgspec.structs.astuple(entry)
    body = fields[: len(fields) - left_out]
    return with_header(ENTRY_MAGIC, msgspec.msgpack.encode(body))


def decode_entry(data: Buffer) -> Declaration:
    """Decode an entry.

    Raises:
        Truncated: the bytes end before the entry does.
        UnsupportedVersion: a later release wrote it.
        Corrupt: not an entry, a checksum that does not match, or a field out of bounds.
    """
    body = body_of(ENTRY_MAGIC, data, "an entry of the cluster log")
    head = unpack(_ENTRY_HEAD_DECODER, body, "an entry of the cluster log")
    check_understood(head.must_understand, UNDERSTOOD, "the entry")
    entry = unpack(_ENTRY_DECODER, body, "an entry of the cluster log")
    facts = entry.facts
    if why := wrong_facts(facts):
        raise Corrupt(why)
    if len(facts) > 1 and not entry.must_understand & SEVERAL:
        raise Corrupt("an entry of the cluster log: it has several facts without the flag")
    return entry


def wrong_name(kind: str, name: str) -> str | None:
    """Return the reason why no fact may be called so; None if one may."""
    if not _KIND.fullmatch(kind):
        return f"{kind[:KIND_CHARACTERS_MAX]!r} is not a kind of facts: lower-case letters, digits and dashes"
    if not 0 < len(name) <= FACT_NAME_CHARACTERS_MAX or not name.isprintable():
        return f"a fact needs a name of 1 to {FACT_NAME_CHARACTERS_MAX} printable characters"
    return None


def wrong_facts(facts: Sequence[NamedFact]) -> str | None:
    """Return the reason why one entry cannot have these facts; None if it can."""
    if why := next(filter(None, (wrong_name(each.kind, each.name) for each in facts)), None):
        return why
    if len({(each.kind, each.name) for each in facts}) < len(facts):
        return "one entry has a fact twice"
    room = Room()
    return None if all(map(room.take, facts)) else "an entry has more facts, or longer ones, than one may have"


class Room:
    """The room that one entry has for facts."""

    def __init__(self) -> None:
        self._facts = self._characters = self._bytes = 0

    def take(self, fact: NamedFact) -> bool:
        """Take the room of one more fact. Return whether there is some; an empty entry has room for any fact."""
        self._facts += 1
        self._characters += len(fact.name)
        self._bytes += len(fact.document or b"")
        return self._facts == 1 or (
            self._facts <= FACTS_MAX and self._characters <= NAMES_CHARACTERS_MAX and self._bytes <= FACTS_BYTES_MAX
        )


def with_header(magic: bytes, body: bytes) -> bytes:
    """Return a body behind its header."""
    begin = magic + bytes([VERSION])
    return _HEADER.pack(begin, crc32c(body, crc32c(begin)), len(body)) + body


def body_of(magic: bytes, data: Buffer, what: str) -> memoryview:
    """Return the checked body of an object.

    Args:
        what: names the object in errors, with its article.

    Raises:
        Truncated, UnsupportedVersion, Corrupt: as ``decode``.
    """
    if len(data) < HEADER_BYTES:
        raise Truncated(f"header of {what} truncated: {len(data)} of {HEADER_BYTES} bytes")
    begin, crc, length = _HEADER.unpack_from(data)
    if begin[:3] != magic:
        raise Corrupt(f"{what} begins with {magic!r}, this object with {begin[:3]!r}")
    body = memoryview(data)[HEADER_BYTES:]
    if len(body) < length:
        raise Truncated(f"{what} truncated: {len(body)} of {length} bytes")
    # The checksum covers the version: a damaged version byte must not read as a later release's.
    if len(body) > length or crc32c(body, crc32c(begin)) != crc:
        raise Corrupt(f"{what}: its length or checksum does not match")
    if begin[3] != VERSION:
        raise UnsupportedVersion(f"{what} of version {begin[3]}; this release knows version {VERSION}")
    return body


# The state of the cluster log: the fold over its entries, and the bytes of its snapshots.
#
# The fold is pure: every process that has read entries 1 to n has the same facts. It knows no kind of facts, so facts
# of kinds of later releases are kept and passed on.

KINDS_MAX = 64
FACTS_PER_KIND_MAX = 65_536
DOCUMENTS_BYTES_MAX = 64 << 20
"""Maximum number of bytes of all documents together."""
SKIPPED_KEPT_MAX = 16
"""Maximum number of skipped entries that are named, the newest."""
WHY_CHARACTERS_MAX = 300
SNAPSHOT_BYTES_MAX = 256 << 20
SNAPSHOT_UNDERSTOOD = 0
"""Bits of a snapshot's ``must_understand`` that this release knows: none yet."""


class Fact(msgspec.Struct, frozen=True, array_like=True):
    """A declared fact."""

    name: Text
    version: Annotated[int, Meta(ge=1)]
    """Number of the entry that declared it."""
    document: Annotated[bytes, Meta(max_length=DOCUMENT_BYTES_MAX)]
    at: Nanoseconds
    by: Annotated[str, Meta(max_length=BY_CHARACTERS_MAX)]
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]


class Skipped(msgspec.Struct, frozen=True, array_like=True):
    """An entry that changed nothing, since it is damaged, missing or beyond a bound."""

    n: U64
    why: Annotated[str, Meta(max_length=WHY_CHARACTERS_MAX)]


class KindSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A kind of facts in a snapshot."""

    kind: str
    last: U64
    """Number of the last entry about the kind."""
    facts: Annotated[list[Fact], Meta(max_length=FACTS_PER_KIND_MAX)]


class ClusterSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state after entry n."""

    cluster_id: ClusterId
    n: U64
    crc: U32 | None
    """CRC-32C of the bytes of entry n; None if that entry was not usable."""
    must_understand: U64
    """Bits of the features that a reader has to know to use the snapshot at all."""
    kinds: Annotated[list[KindSnapshot], Meta(max_length=KINDS_MAX)]
    skipped: Annotated[list[Skipped], Meta(max_length=SKIPPED_KEPT_MAX)]


class _SnapshotHead(msgspec.Struct, frozen=True, array_like=True):
    """The part of a snapshot that no release changes."""

    cluster_id: msgspec.Raw
    n: msgspec.Raw
    crc: msgspec.Raw
    must_understand: U64


_DECODER = msgspec.msgpack.Decoder(ClusterSnapshot)
_HEAD_DECODER = msgspec.msgpack.Decoder(_SnapshotHead)


class ClusterState:
    """Facts after entry ``n`` of the cluster log. Only ``apply`` and ``skip`` change it."""

    def __init__(self, cluster_id: bytes) -> None:
        self.cluster_id = cluster_id
        self.n = 0
        """Number of the last entry; 0 before the first."""
        self.crc: int | None = 0
        """CRC-32C of the bytes of entry ``n``, which the next one names; None if that entry was not usable."""
        self.skipped: tuple[Skipped, ...] = ()
        self._kinds: dict[str, dict[str, Fact]] = {}
        self._last: dict[str, int] = {}
        self._bytes = 0

    def facts(self, kind: str) -> Mapping[str, Fact]:
        """Return the facts of a kind by name."""
        return self._kinds.get(kind, {})

    def last(self, kind: str) -> int:
        """Return the number of the last entry about a kind; 0 if there was never one. Withdrawals count."""
        return self._last.get(kind, 0)

    def version(self, kind: str, name: str) -> int:
        """Return the version of a fact; 0 if it is not declared."""
        fact = self.facts(kind).get(name)
        return 0 if fact is None else fact.version

    def kinds(self) -> list[str]:
        """Return the kinds of all facts that were ever declared."""
        return sorted(self._last)

    def full(self, facts: Sequence[NamedFact]) -> str | None:
        """Return the bound that leaves no room for the facts of an entry; None if there is room for all."""
        if len(self._last.keys() | {each.kind for each in facts}) > max(KINDS_MAX, len(self._last)):
            return f"the cluster log has {KINDS_MAX} kinds of facts, its limit"
        new, size, declares = Counter[str](), self._bytes, False
        for each in facts:
            before = self.facts(each.kind).get(each.name)
            new[each.kind] += (each.document is not None) - (before is not None)
            size += len(each.document or b"") - (len(before.document) if before else 0)
            declares = declares or each.document is not None
        for kind, more in new.items():
            if more > 0 and len(self.facts(kind)) + more > FACTS_PER_KIND_MAX:
                return f"the cluster log has {FACTS_PER_KIND_MAX} facts of kind {kind}, its limit"
        if declares and size > DOCUMENTS_BYTES_MAX:
            return f"the documents of the cluster log would have more than {DOCUMENTS_BYTES_MAX >> 20} MiB, its limit"
        return None

    def draft(self) -> ClusterState:
        """Return a copy, to try changes on."""
        made = ClusterState(self.cluster_id)
        made.n, made.crc, made.skipped, made._bytes = self.n, self.crc, self.skipped, self._bytes
        made._kinds = {kind: dict(facts) for kind, facts in self._kinds.items()}
        made._last = dict(self._last)
        return made

    def apply(self, entry: Declaration, crc: int) -> None:
        """Take the next entry in. One beyond a bound changes none of its facts.

        Args:
            crc: CRC-32C of its bytes.

        Raises:
            ValueError: it is not the next entry.
        """
        if entry.n != self.n + 1:
            raise ValueError(f"entry {entry.n} does not follow entry {self.n}")
        declared = entry.facts
        if (full := self.full(declared)) is not None:
            self.skip(full)
            self.crc = crc
            return
        self.n, self.crc = entry.n, crc
        for each in declared:
            facts = self._kinds.setdefault(each.kind, {})
            before = facts.pop(each.name, None)
            self._bytes -= len(before.document) if before is not None else 0
            self._last[each.kind] = entry.n
            if each.document is not None:
                facts[each.name] = Fact(each.name, entry.n, each.document, entry.at, entry.by, entry.reason)
                self._bytes += len(each.document)

    def skip(self, why: str) -> None:
        """Pass over the next entry, which is not usable."""
        self.n, self.crc = self.n + 1, None
        self.skipped = (*self.skipped, Skipped(self.n, why[:WHY_CHARACTERS_MAX]))[-SKIPPED_KEPT_MAX:]


def crc_of(data: Buffer) -> int:
    """Return the checksum by which the next entry names this one."""
    return int(crc32c(data))


def encode_snapshot(state: ClusterState) -> bytes:
    """Return the bytes of a snapshot: kinds and facts in the order of their names, so that one state has one
    encoding."""
    kinds = [
        KindSnapshot(kind, state.last(kind), [fact for _, fact in sorted(state.facts(kind).items())])
        for kind in state.kinds()
    ]
    snapshot = ClusterSnapshot(state.cluster_id, state.n, state.crc, 0, kinds, list(state.skipped))
    return with_header(SNAPSHOT_MAGIC, msgspec.msgpack.encode(snapshot))


def decode_snapshot(data: Buffer) -> ClusterState:
    """Decode a snapshot.

    Raises:
        Truncated, UnsupportedVersion, Corrupt: as ``entry.decode``.
    """
    body = body_of(SNAPSHOT_MAGIC, data, "a snapshot of the cluster log")
    head = unpack(_HEAD_DECODER, body, "a snapshot of the cluster log")
    check_understood(head.must_understand, SNAPSHOT_UNDERSTOOD, "the snapshot")
    found = unpack(_DECODER, body, "a snapshot of the cluster log")
    state = ClusterState(found.cluster_id)
    state.n, state.crc, state.skipped = found.n, found.crc, tuple(found.skipped)
    for each in found.kinds:
        facts = {fact.name: fact for fact in each.facts}
        sound = len(facts) == len(each.facts) and not any(wrong_name(each.kind, name) for name in (*facts, "-"))
        if not sound or max((fact.version for fact in each.facts), default=0) > each.last or each.last > found.n:
            raise Corrupt(f"a snapshot of the cluster log: its facts of kind {each.kind[:40]!r} are not in order")
        state._kinds[each.kind], state._last[each.kind] = facts, each.last
        state._bytes += sum(len(fact.document) for fact in each.facts)
    return state


# The cluster log in the object store: read from a snapshot and what follows it, and written an entry at a time.
#
# Creating entry n is the commit, as for chunks. A writer decides on the state after entry n - 1, so whatever it read
# is still true when its entry is there. Entries are never deleted: they say who changed what, and why.

_RANDOM_BITS = random.SystemRandom().getrandbits
SNAPSHOT_ENTRIES = 64
"""Number of entries after which a writer makes a snapshot."""
SNAPSHOT_ANYWAY_ENTRIES = 1024
"""The same while an entry since the last snapshot is not usable: from a snapshot on, restoring it changes nothing."""
SNAPSHOTS_KEPT = 3
SNAPSHOTS_DELETED_MAX = 16
"""Maximum number of old snapshots that a writer deletes after one of its own."""
LISTED_MAX = 1000
FAILURES_MAX = 8
"""Number of attempts of a writer that the store does not answer."""
TRIES_MAX = 1000
"""Number of attempts of a writer while others write."""
DECODED_AT_ONCE_BYTES = 1 << 20
"""Size of a snapshot up to which a process decodes it in one step, a few milliseconds."""
RETRY_MIN_S, RETRY_MAX_S = 0.05, 2.0


class Rewritten(Exception):
    """The log in the store is not the one that was read: a backup of the store was restored. Load it again."""


class Contended(Exception):
    """A writer that others always forestalled."""


class Change(NamedTuple):
    """A fact to declare, or to withdraw."""

    kind: str
    name: str
    document: bytes | None


Decide = Callable[[ClusterState], Change | None]


class Author(NamedTuple):
    """The author of a change, with time and reason."""

    at: int
    """Nanoseconds since 1970."""
    by: str
    reason: str
    origin: str = ""
    """The user and the machine of the process, or the address of the client of the API."""
    command: str = ""
    """The words of the command, or method and path of the request."""


class ChangeRefused(Exception):
    """A change that the cluster log does not take. The message says why."""


class ClusterLog:
    """The cluster log of a store. Every method may raise ``StoreError`` besides its own errors.

    Args:
        random_bits: for nonces of entries and waits.
    """

    def __init__(self, store: ObjectStore, cluster_id: bytes, random_bits: Callable[[int], int] = _RANDOM_BITS) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._random_bits = random_bits
        self._snapshots: list[int] = []
        """Numbers of the snapshots in the store as of the last ``load`` and this writer's own, ascending."""

    async def load(self) -> ClusterState:
        """Return the state at the end of the log: one listing, a snapshot, and a read for each entry behind it.

        An entry that is damaged or missing is passed over and named in the state.

        Raises:
            UnsupportedVersion: a later release wrote an entry.
        """
        state, follows = await self._from_snapshot(), True
        while True:
            try:
                while await self.extend(state, follows=follows) == LISTED_MAX:
                    pass
            except Rewritten:
                # The snapshot is of the log before a backup was restored. From the first entry on, all are as they are.
                state, follows, self._snapshots = ClusterState(self._cluster_id), False, []
                continue
            if (behind := await self.behind(state)) is None:
                return state
            # Other writers may have been quicker than the listing; an entry that is there does not count as missing.
            if await self._read(state.n + 1) is None:
                self._pass_over(state, behind)

    async def extend(self, state: ClusterState, entries_max: int = LISTED_MAX, *, follows: bool = True) -> int:
        """Read the entries that follow a state into it. One GET for each, and one for that which is not there.

        Args:
            follows: refuse an entry that names another one than the state's last as the one before it.

        Returns:
            The number of entries read.

        Raises:
            UnsupportedVersion: a later release wrote the next entry. The state is that before it.
            Rewritten: see ``follows``.
        """
        for count in range(entries_max):
            seen = await self._look(state.n + 1)
            if seen is None:
                return count
            data, found = seen
            if isinstance(found, Corrupt):
                state.skip(str(found))
            elif follows and state.crc is not None and found.previous != state.crc:
                raise Rewritten(f"{hub_keys.entry_key(found.n)} does not follow the entry that was read before it")
            else:
                state.apply(found, crc_of(data))
        return entries_max

    async def behind(self, state: ClusterState) -> int | None:
        """Return the number of the first entry in the store behind a state's last; None if there is none. One LIST."""
        for item in await self._store.list(hub_keys.ENTRIES, after=hub_keys.entry_key(state.n), limit=LISTED_MAX):
            number = hub_keys.number_of(item.key)
            if number is not None:
                return number
        return None

    async def holds(self, state: ClusterState) -> bool:
        """Return whether a state's last entry is still in the store as it was read. One GET."""
        if state.n == 0:
            return True
        data = await self._read(state.n)
        return data is not None and (state.crc is None or crc_of(data) == state.crc)

    async def newest(self, state: ClusterState, count: int) -> list[Declaration]:
        """Return the last entries up to a state's, newest first; those that are not usable are left out. One GET for
        each."""
        found = []
        for n in range(state.n, max(0, state.n - count), -1):
            seen = await self._look(n)
            if seen is not None and not isinstance(seen[1], Corrupt):
                found.append(seen[1])
        return found

    async def entry(self, n: int) -> Declaration | None:
        """Return an entry; None if there is none, or it is not usable."""
        seen = await self._look(n)
        return None if seen is None or isinstance(seen[1], Corrupt) else seen[1]

    async def append(self, decide: Decide, author: Author, state: ClusterState | None = None) -> ClusterState:
        """Write an entry. It is durable, and every process will read it, when this returns.

        Args:
            decide: returns the change, given the state that it will follow; called again if another writer was quicker.
                None if there is nothing to change. What it raises ends the call, and nothing was written.
            state: that of the call before, which saves loading it again; it is changed.

        Returns:
            The state with the change.

        Raises:
            ChangeRefused: a bound of the log leaves no room.
            Contended: other writers were always quicker.
            UnsupportedVersion: a later release wrote an entry: nothing was written.
            StoreError: the store did not answer; if it names an entry, that may be there.
        """
        return await self.append_all([decide], author, state)

    async def append_all(
        self, decisions: Sequence[Decide], author: Author, state: ClusterState | None = None
    ) -> ClusterState:
        """Write the changes of decisions in as few entries as hold them. Each decision sees what those before it
        change.

        Of one entry all changes are there, or none. What a decision raises ends the call, and nothing was written of
        its entry and those behind it. For the rest, see ``append``.
        """
        state = await self.load() if state is None else state
        done = 0
        while done < len(decisions):
            state, count = await self._append(decisions[done:], author, state)
            done += count
        return state

    async def _append(
        self, decisions: Sequence[Decide], author: Author, state: ClusterState
    ) -> tuple[ClusterState, int]:
        """Write one entry, with the changes of the first decisions. Return the state, and how many these are."""
        nonce, failures = self._random_bits(64), 0
        for _ in range(TRIES_MAX):
            facts, count = _decided(decisions, state)
            if not facts:
                return state, count
            made = self._entry(state, facts, author, nonce)
            data = encode_entry(made)
            found: bytes | None = data
            why = ""
            try:
                await self._store.create(hub_keys.entry_key(made.n), data)
            except (AlreadyExists, StoreError) as error:
                # Neither says who wrote it: stores answer "exists" to a retry of one's own write.
                found, why = await self._found(made.n), str(error)
            if found == data:
                state.apply(made, crc_of(data))
                await self._snapshot(state)
                return state, count
            if found is None:
                failures += 1
                if failures >= FAILURES_MAX:
                    raise StoreError(f"{hub_keys.entry_key(made.n)} may have been written or not: {why}")
                await self._wait(failures)
                continue
            try:
                await self.extend(state)
            except Rewritten:
                state = await self.load()
        raise Contended(f"other writers were quicker {TRIES_MAX} times. Try again when fewer commands run")

    def _entry(self, state: ClusterState, facts: list[NamedFact], author: Author, nonce: int) -> Declaration:
        if why := wrong_facts(facts) or state.full(facts):
            raise ChangeRefused(why)
        for each in facts:
            if len(each.document or b"") > DOCUMENT_BYTES_MAX:
                raise ChangeRefused(
                    f"{each.kind} {each.name!r} would have a document of {len(each.document or b'')} bytes, the "
                    f"limit is {DOCUMENT_BYTES_MAX}"
                )
        for what, text, most in (
            ("the name of the author", author.by, BY_CHARACTERS_MAX),
            ("the reason", author.reason, REASON_CHARACTERS_MAX),
            ("the origin", author.origin, ORIGIN_CHARACTERS_MAX),
            ("the command", author.command, COMMAND_CHARACTERS_MAX),
        ):
            if len(text) > most:
                raise ChangeRefused(f"{what} has {len(text)} characters, the limit is {most}")
        at, by, reason, origin, command = author
        about = self._cluster_id, state.n + 1, state.crc or 0, SEVERAL if len(facts) > 1 else 0
        return Declaration(*about, *facts[0], at, by, reason, nonce, origin, command, facts[1:])

    async def _found(self, n: int) -> bytes | None:
        """Return an entry's bytes; None if it is not there, or the store does not answer."""
        try:
            return await self._read(n)
        except StoreError:
            return None

    async def _read(self, n: int) -> bytes | None:
        try:
            # One byte more than an entry may have: a longer object is not read whole, and does not decode.
            return await self._store.get_range(hub_keys.entry_key(n), 0, ENTRY_BYTES_MAX + 1)
        except NotFound:
            return None

    async def _look(self, n: int) -> tuple[bytes, Declaration | Corrupt] | None:
        """Return an entry's bytes and their meaning, or what is wrong with them; None if it is not there."""
        data = await self._read(n)
        found = None if data is None else self._decoded(n, data)
        if isinstance(found, Corrupt):
            # The fault may have been in the reading. What is passed over stays so until the next start.
            data = await self._read(n) or data
            found = None if data is None else self._decoded(n, data)
        return None if data is None or found is None else (data, found)

    def _decoded(self, n: int, data: bytes) -> Declaration | Corrupt:
        try:
            with naming(hub_keys.entry_key(n)):
                found = decode_entry(data)
                if (found.cluster_id, found.n) != (self._cluster_id, n):
                    raise Corrupt(f"it holds entry {found.n} of cluster {found.cluster_id.hex()}")
                return found
        except UnsupportedVersion:
            raise
        except Corrupt as error:
            return error

    def _pass_over(self, state: ClusterState, behind: int) -> None:
        """Pass over missing entries. Of many only the last are named, as for all that are not usable."""
        first = state.n + 1
        state.n = max(state.n, behind - 1 - SKIPPED_KEPT_MAX)
        while state.n < behind - 1:
            state.skip(
                f"{hub_keys.entry_key(state.n + 1)} is missing (entries {first} to {behind - 1}): restore it from a "
                "backup of the store"
            )

    async def _from_snapshot(self) -> ClusterState:
        sizes: dict[int, int] = {}
        after = None
        while True:
            # Keys ascend, so the newest snapshot is on the last page.
            page = await self._store.list(hub_keys.CLUSTER_SNAPSHOTS, after=after, limit=LISTED_MAX)
            sizes |= {number: item.size for item in page if (number := hub_keys.number_of(item.key)) is not None}
            if len(page) < LISTED_MAX:
                break
            after = page[-1].key
        self._snapshots = sorted(sizes)
        for n in reversed(self._snapshots):
            if sizes[n] > SNAPSHOT_BYTES_MAX:
                continue
            try:
                data = (await self._store.get(hub_keys.cluster_snapshot_key(n))).data
                with naming(hub_keys.cluster_snapshot_key(n)):
                    in_thread = len(data) > DECODED_AT_ONCE_BYTES
                    state = await asyncio.to_thread(decode_snapshot, data) if in_thread else decode_snapshot(data)
            except UnsupportedVersion:
                raise
            except (CodecError, NotFound):
                continue  # an older one, or the entries themselves, say the same
            if (state.cluster_id, state.n) == (self._cluster_id, n) and await self.holds(state):
                return state
        return ClusterState(self._cluster_id)

    async def _snapshot(self, state: ClusterState) -> None:
        """Write a snapshot if it would save a start many reads, and delete old ones. It is only about cost."""
        last = self._snapshots[-1] if self._snapshots else 0
        unusable = bool(state.skipped) and state.skipped[-1].n > last
        if state.n - last < (SNAPSHOT_ANYWAY_ENTRIES if unusable else SNAPSHOT_ENTRIES):
            return
        try:
            with contextlib.suppress(AlreadyExists):  # of another writer, or of a retry of this one
                await self._store.create(hub_keys.cluster_snapshot_key(state.n), encode_snapshot(state))
            self._snapshots.append(state.n)
            for n in self._snapshots[:-SNAPSHOTS_KEPT][:SNAPSHOTS_DELETED_MAX]:
                await self._store.delete(hub_keys.cluster_snapshot_key(n))
                self._snapshots.remove(n)
        except StoreError:
            return

    async def _wait(self, failures: int) -> None:
        longest = min(RETRY_MAX_S, RETRY_MIN_S * 2**failures)
        await asyncio.sleep(longest * (0.5 + self._random_bits(16) / (1 << 17)))


def _decided(decisions: Sequence[Decide], state: ClusterState) -> tuple[list[NamedFact], int]:
    """Return the changes of the first decisions that fit into one entry behind a state, and how many decisions these
    are."""
    if len(decisions) == 1:
        change = decisions[0](state)
        return ([] if change is None else [NamedFact(*change)]), 1
    facts: list[NamedFact] = []
    names = set[tuple[str, str]]()
    room = Room()
    draft = state.draft()
    for count, decide in enumerate(decisions):
        change = decide(draft)
        if change is None:
            continue
        found = NamedFact(*change)
        # What has no room is in the next entry. A killed run leaves whole entries, and is repeated behind them.
        if found[:2] in names or not room.take(found):
            return facts, count
        facts.append(found)
        names.add(found[:2])
        # As an entry of its own: the next decision sees what those before it have changed.
        draft.apply(Declaration(draft.cluster_id, draft.n + 1, 0, 0, *found, 0, "", "", 0), 0)
    return facts, len(decisions)


# The follower of the cluster log in a process: the facts as of some seconds ago, also while the store is silent.

_logger = logging.getLogger(__name__)
INTERVAL_S = 2.0
"""Interval of looks for the next entry, one GET each: 0.52 US dollars a month for each process in a bucket."""
LOOKS_PER_CHECK = 30
"""Number of looks after which the follower looks whether the log is still the one that it read: a GET and a LIST."""
ENTRIES_PER_LOOK_MAX = 256
"""Maximum number of entries that a step reads before it calls ``changed``."""
SLOW_DOWN_MAX = 4
"""Factor to which the interval doubles while looks fail, and an answer would change nothing."""


class ClusterLogFollower:
    """The state of the cluster log, read on in the background.

    A store that does not answer leaves the last state in force: links and readers continue with what was known.

    Args:
        changed: called after entries were read, in the event loop. If it fails, it is called again at the next look.
        interval_s: interval of looks.
    """

    def __init__(self, log: ClusterLog, changed: Callable[[], None], interval_s: float = INTERVAL_S) -> None:
        self._log = log
        self._changed = changed
        self._interval_s = interval_s
        self._state: ClusterState | None = None
        self._now = asyncio.get_running_loop().time
        self._seen_at = 0.0
        self._looks = 0
        self._is_unreported = False
        self.trouble: str | None = None
        """The reason why the state is not that of the log; None if it is."""
        self._repeats = Repeats()
        self._task = BackgroundTask()

    @property
    def state(self) -> ClusterState:
        """Return the state as of the last look."""
        assert self._state is not None, "the follower has not been started"
        return self._state

    @property
    def age_s(self) -> float:
        """Return the seconds since the end of the log was last seen."""
        return self._now() - self._seen_at

    async def start(self) -> None:
        """Read the log, and continue in the background.

        Raises:
            UnsupportedVersion: a later release wrote an entry.
            StoreError: the store did not answer.
        """
        self._state, self._seen_at = await self._log.load(), self._now()
        self._name_skipped(0)
        self._task.start(self._run(), name="cluster-log")

    async def close(self) -> None:
        """Stop following."""
        await self._task.close()

    async def look(self) -> None:
        """Read the entries that are new. A failure leaves the state as it is, and is logged."""
        try:
            while await self._look():
                pass
        except (StoreError, UnsupportedVersion) as error:
            self.trouble = str(error)
        except Exception as error:  # without looks, a withdrawn token would stay in force
            _logger.exception("a look at the cluster log failed")
            self.trouble = f"{type(error).__name__}: {error}"
        else:
            self.trouble = None
            self._repeats.clear()
            return
        count = self._repeats.due(self.trouble, self._now())
        if count is not None:
            _logger.warning(
                "new entries of the cluster log cannot be read, its last known facts stay in force: %s%s",
                self.trouble,
                left_out(count),
            )

    async def _look(self) -> bool:
        """Read some entries. Return whether there may be more."""
        self._looks += 1
        state, before = self.state, self.state.n
        try:
            if self._looks % LOOKS_PER_CHECK == 0 and not await self._is_same():
                raise Rewritten
            count = await self._log.extend(state, ENTRIES_PER_LOOK_MAX)
        except Rewritten:
            self._state, count, before = await self._log.load(), 0, -1
            _logger.warning("the cluster log is not the one that was read before; it was read again")
        finally:
            # Entries that were read before an error count, too.
            if self.state.n != before:
                self._name_skipped(before)
                self._is_unreported = True
            if self._is_unreported:  # also if the last call failed
                self._changed()
                self._is_unreported = False
        if count == ENTRIES_PER_LOOK_MAX:
            return True
        self._seen_at = self._now()
        return False

    async def _is_same(self) -> bool:
        """Return whether the log has what was read of it, and no entry behind a missing one."""
        if not await self._log.holds(self.state):
            return False
        behind = await self._log.behind(self.state)
        return behind is None or behind == self.state.n + 1

    def _name_skipped(self, before: int) -> None:
        for skipped in self.state.skipped:
            if skipped.n > before:
                _logger.error("entry %d of the cluster log is passed over: %s", skipped.n, skipped.why)

    async def _run(self) -> None:
        slower = 1
        while True:
            await asyncio.sleep(self._interval_s * slower)
            await self.look()
            slower = 1 if self.trouble is None else min(2 * slower, SLOW_DOWN_MAX)
