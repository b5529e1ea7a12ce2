"""The state of the cluster log: the fold over its entries, and the bytes of its snapshots.

The fold is pure: every process that has read entries 1 to n has the same facts. It knows no kind of facts, so facts of
kinds of later releases are kept and passed on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from crc32c import crc32c
from msgspec import Meta

from weft.protocols.batch import Buffer
from weft.protocols.chunk_index.footer import check_understood
from weft.protocols.errors import Corrupt
from weft.protocols.fields import U32, U64, Nanoseconds, unpack
from weft.storage.cluster_log.entry import (
    BY_CHARACTERS_MAX,
    DOCUMENT_BYTES_MAX,
    REASON_CHARACTERS_MAX,
    SNAPSHOT_MAGIC,
    ClusterId,
    Declaration,
    NamedFact,
    Text,
    body_of,
    with_header,
    wrong_name,
)

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


def encode(state: ClusterState) -> bytes:
    """Return the bytes of a snapshot: kinds and facts in the order of their names, so that one state has one
    encoding."""
    kinds = [
        KindSnapshot(kind, state.last(kind), [fact for _, fact in sorted(state.facts(kind).items())])
        for kind in state.kinds()
    ]
    snapshot = ClusterSnapshot(state.cluster_id, state.n, state.crc, 0, kinds, list(state.skipped))
    return with_header(SNAPSHOT_MAGIC, msgspec.msgpack.encode(snapshot))


def decode(data: Buffer) -> ClusterState:
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
