"""Splits of a shard: SEAL records, what a state keeps of them, and the state with which the new shard begins.

A SEAL in chunk n moves the edges of one half of the shard to a new one. From chunk n on the shard takes nothing of
them. The new shard's state at its number n is that half of the shard's state, and its log begins with chunk n + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from weft.protocols.fields import U32, U64, Seq, unpack
from weft.protocols.shard.placement import BITS_MAX, SHARDS_MAX, digest_of

SPLIT_LEVEL = 3
"""Fold level from which on the log may have SEAL records. Below it they change nothing."""


class SealBody(msgspec.Struct, frozen=True, array_like=True):
    """Body of a SEAL record."""

    shard: Annotated[int, Meta(ge=1, lt=SHARDS_MAX)]
    """The new shard."""
    bit: Annotated[int, Meta(ge=0, lt=BITS_MAX)]
    """Bit of the digest of an edge's name that is set for the edges that move."""
    nonce: U64
    """Number in the key of the snapshot with which the new shard begins."""


class Split(msgspec.Struct, frozen=True, array_like=True):
    """A split of a shard."""

    shard: U32
    """The new shard."""
    bit: U32
    """Bit of the digest of an edge's name that is set for the edges that moved."""
    n: Seq
    """Number of the chunk with the SEAL record."""
    nonce: U64


_BODY = msgspec.msgpack.Decoder(SealBody)


def seal_of(body: bytes) -> SealBody:
    """Return what a SEAL record says.

    Raises:
        Corrupt: the body is malformed.
    """
    return unpack(_BODY, body, "a SEAL record")


def moved_to(splits: Iterable[Split], tenant: str, edge: str) -> int | None:
    """Return the shard to which an edge of a shard moved; None if it is still here."""
    digest: int | None = None
    for split in splits:
        digest = digest_of(tenant, edge) if digest is None else digest
        if digest >> split.bit & 1:
            return split.shard
    return None


def moving(edges: Iterable[tuple[str, str]], bit: int) -> list[tuple[str, str]]:
    """Return those of some edges, (tenant, edge), that a split by a bit moves."""
    return [edge for edge in edges if digest_of(*edge) >> bit & 1]


def is_moving(tenant: str, edge: str, bit: int) -> bool:
    """Return whether a split by a bit moves an edge."""
    return bool(digest_of(tenant, edge) >> bit & 1)


def in_order(splits: Sequence[Split], seal: SealBody, shard: int) -> bool:
    """Return whether a SEAL record can follow a shard's splits: their bits ascend, and the new shard is another."""
    known = {split.shard for split in splits} | {shard}
    return seal.shard not in known and (not splits or seal.bit > splits[-1].bit)
