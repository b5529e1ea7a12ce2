"""Placement: the shard of a store for an edge's lanes. The rule is persisted: it must never change.

All lanes of an edge are in one shard, so a failing shard affects only its own edges, and a hub process needs few shards
to serve a link. A store begins with a power of two of shards, and any shard can split alone: the edges of one half of
it, by the next bit of the digest, go to a new shard, and no edge of another shard moves. A tenant that is set apart has
a shard of its own, which begins with all of its edges, and splits like the others. The rule is in
docs/reference/formats/shard-state.md.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import product
from string import ascii_lowercase
from typing import Annotated

import msgspec
from msgspec import Meta

from weft.protocols.lane import NAME_CHARACTERS_MAX, NodeName
from weft.protocols.ranges import U32, U64, Seq, unpack

TENANT_EDGE, TENANT_APART_EDGE = "tenant-edge", "tenant-apart-edge"
"""Names of the rule in ``cluster.json``: without tenants that are set apart, and with some."""
SHARDS_MAX = 1024
DIGEST_BYTES = 8
BITS_MAX = 8 * DIGEST_BYTES
"""Number of bits of a digest: a shard of all of them cannot split."""


def digest_of(tenant: str, edge: str) -> int:
    """Return the digest of an edge's name, whose low bits place its lanes."""
    name = b"".join(struct.pack("<I", len(part)) + part for part in (tenant.encode(), edge.encode()))
    return int.from_bytes(blake2b(name, digest_size=DIGEST_BYTES).digest(), "little")


def shard_of(tenant: str, edge: str, shards: int) -> int:
    """Return the shard of all lanes of an edge in a store without splits: the low bits of a digest of its name.

    Args:
        shards: a power of two.
    """
    assert is_shard_count(shards), shards
    return digest_of(tenant, edge) & (shards - 1)


class ShardTree:
    """The shards of a store: those it began with, those of tenants that are set apart, and those made by splits.

    Args:
        roots: the number of shards at the start, a power of two.
        splits: the shard that each split halved, in the order of the splits. The new ones have the numbers from
            ``roots`` on that are no tenant's first shard.
        apart: (tenant, number of its first shard) of each tenant that is set apart.

    Raises:
        ValueError: a split is of a shard that did not exist, a tenant or a number comes twice or is out of bounds, or
            there are more shards than allowed.
    """

    def __init__(self, roots: int, splits: Sequence[int] = (), apart: Sequence[tuple[str, int]] = ()) -> None:
        if not is_shard_count(roots) or roots + len(splits) + len(apart) > SHARDS_MAX:
            raise ValueError(f"{roots} shards, {len(splits)} splits, and {len(apart)} tenants that are set apart")
        self.roots, self.splits, self.apart = roots, tuple(splits), dict(apart)
        tenants = {shard: tenant for tenant, shard in apart}
        if min(len(tenants), len(self.apart)) < len(apart) or not all(roots <= shard < self.count for shard in tenants):
            raise ValueError(f"the first shards of tenants that are set apart are {list(apart)}")
        self._depths = [roots.bit_length() - 1] * roots
        self._tenants: list[str | None] = [None] * roots
        self._parents: list[int | None] = [None] * roots
        self._children: dict[int, list[tuple[int, int]]] = {}
        halves = iter(splits)
        for shard in range(roots, self.count):
            if shard in tenants:
                self._add(None, tenants[shard], 0)
                continue
            halved = next(halves)
            if not 0 <= halved < shard or self._depths[halved] >= BITS_MAX:
                raise ValueError(f"the split that made shard {shard} is of shard {halved}")
            bit = self._depths[halved]
            self._children.setdefault(halved, []).append((bit, shard))
            self._depths[halved] = bit + 1
            self._add(halved, self._tenants[halved], bit + 1)

    def _add(self, parent: int | None, tenant: str | None, depth: int) -> None:
        self._parents.append(parent)
        self._tenants.append(tenant)
        self._depths.append(depth)

    @property
    def count(self) -> int:
        """Return the number of shards, which are numbered from 0."""
        return self.roots + len(self.splits) + len(self.apart)

    @property
    def firsts(self) -> tuple[int, ...]:
        """Return the shards that no split made, by number."""
        return *range(self.roots), *sorted(self.apart.values())

    def firsts_of(self, tenant: str) -> tuple[int, ...]:
        """Return the shards that no split made and that may have edges of a tenant, by number."""
        return (self.apart[tenant],) if tenant in self.apart else tuple(range(self.roots))

    def is_first(self, shard: int) -> bool:
        """Return whether no split made a shard; false for one that is not known."""
        return 0 <= shard < self.count and self._parents[shard] is None

    def tenant_of(self, shard: int) -> str | None:
        """Return the tenant that has a shard for itself; None for one with edges of all other tenants."""
        return self._tenants[shard]

    def first_of(self, tenant: str, edge: str) -> int:
        """Return the shard in which an edge was before any split."""
        own = self.apart.get(tenant)
        return digest_of(tenant, edge) & (self.roots - 1) if own is None else own

    def shard_of(self, tenant: str, edge: str) -> int:
        """Return the shard of all lanes of an edge."""
        digest, shard = digest_of(tenant, edge), self.first_of(tenant, edge)
        while (found := self._child(shard, digest)) is not None:
            shard = found
        return shard

    def _child(self, shard: int, digest: int) -> int | None:
        return next((child for bit, child in self._children.get(shard, ()) if digest >> bit & 1), None)

    def parent(self, shard: int) -> int | None:
        """Return the shard that was halved to make this one; None for one of the first."""
        return self._parents[shard]

    def lineage(self, shard: int) -> tuple[int, ...]:
        """Return the shards that had an edge of this one before, the last first; none for one of the first, and for
        one that is not known."""
        found = list[int]()
        while shard < self.count and (above := self.parent(shard)) is not None:
            found.append(above)
            shard = above
        return tuple(found)

    def children(self, shard: int) -> list[tuple[int, int]]:
        """Return (bit, new shard) of each split of a shard, in their order."""
        return list(self._children.get(shard, ()))

    def next_bit(self, shard: int) -> int:
        """Return the bit of the digest by which the next split of a shard halves it."""
        return self._depths[shard]


def is_shard_count(number: int) -> bool:
    """Return whether a store may begin with this many shards: a power of two up to ``SHARDS_MAX``."""
    return 0 < number <= SHARDS_MAX and number & (number - 1) == 0


def nearest_shard_counts(number: int) -> list[int]:
    """Return the valid shard counts next to an invalid number: the one below and the one above, if they exist."""
    below = 1 << (max(1, min(number, SHARDS_MAX)).bit_length() - 1)
    return [count for count in (below, 2 * below) if is_shard_count(count)]


# Names of the edges of a Spark query: ``spark-QUERY``, and those over which its lanes are spread.
#
# All lanes of an edge are in one shard, so a query that writes more than one hub process can take has several edges.
# Their names put them into different shards. The rule is persisted: it must never change. It is in
# docs/reference/formats/shard-state.md.
#
# The further names begin with ``spark-_``, and no name of a query begins with ``_``: the edges of a query are never
# those of another one.

EDGE_PREFIX = "spark-"
"""Prefix of a query's edge names."""
SPREAD_MAX = 64
"""Maximum number of edges of a query."""
SPREADS = (1, 2, 4, 8, 16, 32, SPREAD_MAX)
"""Powers of two: so a source shard has few edges under all spreads together."""
_SALT_CHARACTERS_MAX = 3
QUERY_CHARACTERS_MAX = NAME_CHARACTERS_MAX - len(EDGE_PREFIX)
SPREAD_QUERY_CHARACTERS_MAX = QUERY_CHARACTERS_MAX - len("_63_") - _SALT_CHARACTERS_MAX
"""Maximum number of characters of the name of a query that is spread."""
_SPREAD = re.compile(rf"{EDGE_PREFIX}_[0-9]{{1,2}}[a-z]{{0,{_SALT_CHARACTERS_MAX}}}_([a-z0-9][a-z0-9_-]*)")


@lru_cache(maxsize=1024)
def edge_of_query(tenant: str, query: str, place: int) -> str:
    """Return an edge of a query. Any 2, 4, ... of them, from 0 on, are in as many shards, of a store that has them.

    Args:
        place: 0 for ``spark-QUERY``, up to ``SPREAD_MAX - 1``.
    """
    first = EDGE_PREFIX + query
    if place == 0:
        return first
    # The low bits of the digest choose the shard: consecutive ones are as far apart as possible, and stay so when
    # shards split. One salt in 64 fits; of all 18,279 none does with a chance of 10^-125.
    wanted = (digest_of(tenant, first) + place) % SPREAD_MAX
    names = (f"{EDGE_PREFIX}_{place}{salt}_{query}" for salt in _salts())
    return next(name for name in names if digest_of(tenant, name) % SPREAD_MAX == wanted)


def _salts() -> Iterator[str]:
    for length in range(_SALT_CHARACTERS_MAX + 1):
        yield from map("".join, product(ascii_lowercase, repeat=length))


def place_of(source_shard: int, spread: int) -> int:
    """Return the number of the edge that has the lane of a source shard."""
    return source_shard % spread


def places_of(source_shard: int) -> list[int]:
    """Return the numbers of the edges that have the lane of a source shard under any spread."""
    return sorted({place_of(source_shard, spread) for spread in SPREADS})


def first_edge(edge: str) -> str:
    """Return the edge ``spark-QUERY`` of a query for any of its edges, and every other name as it is."""
    found = _SPREAD.fullmatch(edge)
    return EDGE_PREFIX + found[1] if found is not None else edge


def opened_by(node: NodeName) -> tuple[NodeName, NodeName]:
    """Return the edges whose tokens open an edge: itself, and the first edge of the same query."""
    return node, NodeName(node.tenant, first_edge(node.edge))


# Splits of a shard: SEAL records, what a state keeps of them, and the state with which the new shard begins.
#
# A SEAL in chunk n moves the edges of one half of the shard to a new one. From chunk n on the shard takes nothing of
# them. The new shard's state at its number n is that half of the shard's state, and its log begins with chunk n + 1.


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


def seals_in_order(splits: Sequence[Split], seal: SealBody, shard: int) -> bool:
    """Return whether a SEAL record can follow a shard's splits: their bits ascend, and the new shard is another."""
    known = {split.shard for split in splits} | {shard}
    return seal.shard not in known and (not splits or seal.bit > splits[-1].bit)
