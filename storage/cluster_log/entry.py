"""Bytes of an entry of the cluster log (docs/reference/formats/cluster-log.md): one declared fact, or several."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from crc32c import crc32c
from msgspec import Meta

from weft.protocols.batch import Buffer
from weft.protocols.chunk_index.footer import check_understood
from weft.protocols.errors import Corrupt, Truncated, UnsupportedVersion
from weft.protocols.fields import U32, U64, Nanoseconds, unpack

ENTRY_MAGIC, SNAPSHOT_MAGIC = b"WFE", b"WFA"
VERSION = 1
_HEADER = struct.Struct("<4sII")
HEADER_BYTES = _HEADER.size
SEVERAL = 1
"""Bit of an entry with several facts."""
UNDERSTOOD = SEVERAL
"""Bits of ``must_understand`` that this release knows."""
KIND_CHARACTERS_MAX = 32
NAME_CHARACTERS_MAX = 200
DOCUMENT_BYTES_MAX = 64 << 10
"""Longest document of a fact: a thousand names of edges."""
BY_CHARACTERS_MAX = 256
REASON_CHARACTERS_MAX = 512
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
Text = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]


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


_DECODER = msgspec.msgpack.Decoder(Declaration)
_HEAD_DECODER = msgspec.msgpack.Decoder(_EntryHead)


def encode(entry: Declaration) -> bytes:
    """Return the bytes of an entry. What is empty at its end is left out."""
    left_out = 0 if entry.more else 1 if entry.origin or entry.command else 3
    fields = msgspec.structs.astuple(entry)
    body = fields[: len(fields) - left_out]
    return with_header(ENTRY_MAGIC, msgspec.msgpack.encode(body))


def decode(data: Buffer) -> Declaration:
    """Decode an entry.

    Raises:
        Truncated: the bytes end before the entry does.
        UnsupportedVersion: a later release wrote it.
        Corrupt: not an entry, a checksum that does not match, or a field out of bounds.
    """
    body = body_of(ENTRY_MAGIC, data, "an entry of the cluster log")
    head = unpack(_HEAD_DECODER, body, "an entry of the cluster log")
    check_understood(head.must_understand, UNDERSTOOD, "the entry")
    entry = unpack(_DECODER, body, "an entry of the cluster log")
    facts = entry.facts
    if why := wrong_facts(facts):
        raise Corrupt(why)
    if len(facts) > 1 and not entry.must_understand & SEVERAL:
        raise Corrupt("an entry of the cluster log: it has several facts, and does not say so")
    return entry


def wrong_name(kind: str, name: str) -> str | None:
    """Return the reason why no fact may be called so; None if one may."""
    if not _KIND.fullmatch(kind):
        return f"{kind[:KIND_CHARACTERS_MAX]!r} is not a kind of facts: lower-case letters, digits and dashes"
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        return f"a fact needs a name of 1 to {NAME_CHARACTERS_MAX} printable characters"
    return None


def wrong_facts(facts: Sequence[NamedFact]) -> str | None:
    """Return the reason why one entry cannot have these facts; None if it can."""
    if why := next(filter(None, (wrong_name(each.kind, each.name) for each in facts)), None):
        return why
    if len({(each.kind, each.name) for each in facts}) < len(facts):
        return "a fact is there twice in one entry"
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
        raise Truncated(f"{what} has a header of {HEADER_BYTES} bytes, {len(data)} are there")
    begin, crc, length = _HEADER.unpack_from(data)
    if begin[:3] != magic:
        raise Corrupt(f"{what} begins with {magic!r}, this object with {begin[:3]!r}")
    body = memoryview(data)[HEADER_BYTES:]
    if len(body) < length:
        raise Truncated(f"{what} has {length} bytes, {len(body)} are there")
    # The checksum covers the version: a damaged version byte must not read as a later release's.
    if len(body) > length or crc32c(body, crc32c(begin)) != crc:
        raise Corrupt(f"{what}: its length or checksum does not match")
    if begin[3] != VERSION:
        raise UnsupportedVersion(f"{what} of version {begin[3]}; this release knows version {VERSION}")
    return body
