"""Facts of the cluster log: kinds, documents, and the refusals of their changes. The words are persisted
(docs/reference/formats/cluster-log.md).

A change is a decision for ``ClusterLog.append``. It is made on the state that its entry follows, so facts may depend on
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from weft.cloud_hub.auth.tokens import NAMES_SHOWN_MAX
from weft.protocols.chunk_index import StreamKey
from weft.storage.cluster_log import Change, ClusterState

TOKEN, TENANT, GROUP, CONFIG, PULL_KIND = "token", "tenant", "group", "config", "pull"
TABLE, OPENING = "table", "opening"
"""Kinds of facts."""
BACKUP = "backup"
"""Kind of facts about backups."""
REGION = "region"
"""Kind of facts about the links to other regions."""
HUBS = "hubs"
"""Name of the only fact of kind ``opening``: hubs require no token until a later entry declares one."""


class UnreadableDocument(ValueError):
    """A document that this release cannot read."""


Document = TypeVar("Document", bound=msgspec.Struct)


def decode(document: bytes, kind: type[Document]) -> Document:
    """Decode a document.

    Raises:
        UnreadableDocument: it is not one of this kind, or has values that this release does not know.
    """
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableDocument(str(error)) from error


def encode(document: msgspec.Struct, before: bytes | None = None) -> bytes:
    """Return the bytes of a document.

    Args:
        before: the document that it replaces, whose fields of later releases stay.
    """
    own = type(document).__struct_fields__
    try:
        kept = msgspec.json.decode(before, type=dict[str, msgspec.Raw]) if before is not None else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        kept = {}
    fields = msgspec.json.decode(msgspec.json.encode(document), type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**{name: value for name, value in kept.items() if name not in own}, **fields})


def stream_name(key: StreamKey) -> str:
    """Return the name of the fact of a tenant's stream or group."""
    return f"{key[0]}/{key[1]}"


def parse_stream_name(name: str) -> StreamKey:
    """Return (tenant, name of the stream or group) of a fact's name."""
    tenant, _, stream = name.partition("/")
    return tenant, stream


Decision = Callable[[ClusterState], Change | None]
ALWAYS_THERE = "default"
"""Tenant that needs no declaration, as the hub's own tenant with the stream of acts."""


class CannotDeclare(Exception):
    """A change that contradicts the facts. The message has the reason and the remedy."""


def noting(decisions: Sequence[Decision]) -> tuple[list[Decision], list[bool]]:
    """Return decisions that record whether they change something, and the list of these records, each False until
    then."""
    changed = [False] * len(decisions)

    def noted(at: int, decision: Decision) -> Decision:
        def decide(state: ClusterState) -> Change | None:
            change = decision(state)
            changed[at] = change is not None  # the last time counts: after a quicker writer, it is decided again
            return change

        return decide

    return [noted(*each) for each in enumerate(decisions)], changed


def known_fact(state: ClusterState, kind: str, name: str) -> None:
    """Refuse a change of a fact that is not declared."""
    if name not in state.facts(kind):
        raise CannotDeclare(f"there is no {kind} {name!r} in the cluster log; there are: {listed(state.facts(kind))}")


def listed(names: Iterable[str]) -> str:
    """Return names for a message, in order; of many only the first ones."""
    shown = sorted(names)
    more = f" and {len(shown) - NAMES_SHOWN_MAX} more" if len(shown) > NAMES_SHOWN_MAX else ""
    return (", ".join(shown[:NAMES_SHOWN_MAX]) or "none") + more


def read_fact(name: str, kind: str, document: bytes, wanted: type[Document]) -> Document:
    """Return the document of a fact that a change depends on. Refuse the change if this release cannot read it."""
    try:
        return decode(document, wanted)
    except UnreadableDocument as error:
        raise CannotDeclare(
            f"this release cannot read {kind} {name!r} ({error}): use the release that wrote it, or withdraw it"
        ) from error
