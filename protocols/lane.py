"""Identity of a record: its lane, and the rules for names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from weft.protocols.ranges import U32

NAME_CHARACTERS_MAX = 64
_NAME = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{NAME_CHARACTERS_MAX - 1}}}")
NAME_RULE = "lower-case letters, digits, '-' and '_', at most 64, starting with a letter or digit"


class NodeName(NamedTuple):
    """(tenant, edge): the name of a node and of its records."""

    tenant: str
    edge: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.edge}"


def node_in_certificate(common_name: str) -> NodeName | None:
    """Return the node that a certificate's common name names: an edge of the tenant `default`, or tenant, slash and
    edge; None if it names none."""
    tenant, slash, edge = common_name.rpartition("/")
    node = NodeName(tenant if slash else "default", edge)
    return node if valid_name(node.tenant) and valid_name(node.edge) else None


class Lane(NamedTuple):
    """(tenant, edge, log id, stream): within a lane, a sequence number is a record's permanent name."""

    tenant: str
    edge: str
    log_id: int
    stream: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.edge}/{format_log_id(self.log_id)}/{self.stream}"


def valid_name(name: str) -> bool:
    """Return whether ``name`` may name a tenant, an edge or a stream: it is safe in paths, URLs and SQL."""
    return _NAME.fullmatch(name) is not None


def matches(pattern: str, edge: str) -> bool:
    """Return whether a name, or a pattern in which ``*`` matches any characters, is an edge's.

    It takes time in proportion to both lengths. A regular expression with many ``.*`` would take their product many
    times over, and hubs match each edge that links.
    """
    first, *others = pattern.split("*")
    if not others:
        return pattern == edge
    *middle, last = others
    if len(edge) < len(first) + len(last) or not edge.startswith(first) or not edge.endswith(last):
        return False
    at, end = len(first), len(edge) - len(last)
    for part in middle:  # the leftmost place leaves the most for the next part
        at = edge.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def format_log_id(log_id: int) -> str:
    """Return a log id in its text form: 16 hexadecimal digits."""
    return f"{log_id:016x}"


# Origin: the maker of a batch's records, a version of a function or of a schema (docs/reference/formats/batch.md).
#
# A batch names its origin by a number. The carrier of the batch resolves the number: the log by its ``ORIGINS``
# entries, a link when a lane is opened, a chunk in its footer.

ORIGIN_TEXT_MAX = 255
"""Longest name and version, in characters."""
HASH_BYTES_MAX = 64
HASH_BYTES_SHOWN = 4
"""Bytes of a hash that are shown in texts, as hexadecimal digits."""
ORIGINS_MAX = 1024
"""Maximum number of origins in one list: of a log, a lane or a chunk."""


class OriginKind(IntEnum):
    """Kinds of origins. The numbers are persisted; a reader keeps unknown ones."""

    FUNCTION = 1
    SCHEMA = 2


OriginText = Annotated[str, Meta(max_length=ORIGIN_TEXT_MAX)]
OriginHash = Annotated[bytes, Meta(max_length=HASH_BYTES_MAX)]


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """One origin with its number in the batches of one log (or link, or chunk)."""

    number: U32
    """At least 1: a batch of origin 0 has none."""
    kind: U32
    """An ``OriginKind``, or a later release's number."""
    name: OriginText
    version: OriginText
    hash: OriginHash
    """Checksum of the content; empty without one."""

    @property
    def text(self) -> str:
        """Return the origin as text for tables and people: ``name@version#hash``, with the first four bytes of the
        hash.

        Empty parts are left out, and so is a hash with which the version begins. Kinds other than functions come before
        the name.
        """
        kind = "" if self.kind == OriginKind.FUNCTION else f"{_kind_name(self.kind)}:"
        version = f"@{self.version}" if self.version else ""
        hash_ = self.hash[:HASH_BYTES_SHOWN].hex()
        is_said = not hash_ or self.version.startswith(hash_)
        return f"{kind}{self.name}{version}{'' if is_said else f'#{hash_}'}"


def origin_text(number: int, known: Mapping[int, Origin]) -> str | None:
    """Return the text of an origin by its number: None for 0, and ``#7`` for an unknown number."""
    if not number:
        return None
    origin = known.get(number)
    return f"#{number}" if origin is None else origin.text


def by_number(origins: Iterable[Origin]) -> dict[int, Origin]:
    """Return number -> origin."""
    return {origin.number: origin for origin in origins}


def _kind_name(kind: int) -> str:
    try:
        return OriginKind(kind).name.lower()
    except ValueError:
        return str(kind)


# The hub's own lanes: messages to edges, and administrative acts.

DOWN_STREAM = "weft-down"
"""Stream of the messages to edges. Edges cannot send it: names with this prefix are Weft's own."""
AUDIT_TENANT = AUDIT_STREAM = "weft-audit"
"""The stream of administrative acts, in a tenant of its own: acts name tokens and tenants of all."""
AUDIT_EDGE = "weft-hub"
"""Name in the place of an edge in the lane of acts."""


def is_hubs_own(tenant: str, stream: str) -> bool:
    """Return whether only hub processes write lanes of a stream. The tenant of acts has no others: who reads them would
    take what a link wrote beside them for the hub's word."""
    return stream == DOWN_STREAM or tenant == AUDIT_TENANT
