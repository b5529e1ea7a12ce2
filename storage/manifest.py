"""Manifest of a shard: the only object of its log that changes. JSON, swapped as a whole.

Nodes of several releases swap it, so each writes unknown fields back unchanged.
"""

from __future__ import annotations

import msgspec

from weft.protocols.chunk_index.footer import check_understood
from weft.protocols.errors import Corrupt

UNDERSTOOD = 0
"""Bits of ``must_understand`` that this release knows: none yet."""


class Manifest(msgspec.Struct, frozen=True):
    """The shard's newest snapshot, and the bound of the collector's deletions. Change it with ``changed``."""

    snapshot_n: int = -1
    snapshot: str | None = None
    """Key of the snapshot of chunk ``snapshot_n``; None before the first."""
    watermark: int = 0
    """Number below which chunks may be gone. It only grows, and the collector raises it to ``snapshot_n``
    at most."""
    must_understand: int = 0
    """Bits of the features that a node has to know to use the manifest at all."""
    others: tuple[tuple[str, bytes], ...] = ()
    """Fields of later releases, as JSON. In the object they are beside the others."""


_KNOWN = ("snapshot_n", "snapshot", "watermark", "must_understand")


def changed(manifest: Manifest, **fields: object) -> Manifest:
    """Return the manifest with other values of some fields, and with its unknown fields."""
    return msgspec.structs.replace(manifest, **fields)


def encode(manifest: Manifest) -> bytes:
    """Return the manifest's bytes."""
    fields: dict[str, object] = {name: getattr(manifest, name) for name in _KNOWN}
    return msgspec.json.encode({**fields, **{name: msgspec.Raw(value) for name, value in manifest.others}})


def decode(data: bytes) -> Manifest:
    """Decode a manifest.

    Raises:
        UnsupportedVersion: a later release wrote something into it that this one must not skip.
        Corrupt: it does not decode.
    """
    try:
        found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        needed = msgspec.json.decode(found.get("must_understand", msgspec.Raw(b"0")), type=int)
        check_understood(needed, UNDERSTOOD, "the manifest")
        known = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"the manifest does not decode: {error}") from error
    others = tuple((name, bytes(value)) for name, value in found.items() if name not in _KNOWN)
    return msgspec.structs.replace(known, others=others)
