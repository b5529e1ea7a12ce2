"""Tenants that are set apart: APART records, from which on a shard takes nothing of a tenant.

A tenant is set apart only while no shard has anything of it. Each shard of all tenants says so in its log first; then
``cluster.json`` gives the tenant a shard of its own. So a process that does not know of that shard yet cannot write the
tenant's records elsewhere.
"""

from __future__ import annotations

import msgspec

from weft.protocols.chunk_index.footer import Control
from weft.protocols.errors import Corrupt
from weft.protocols.fields import unpack
from weft.protocols.shard.shard_state import ShardState

APART_LEVEL = 4
"""Fold level from which on the log may have APART records. Below it they change nothing."""


class ApartBody(msgspec.Struct, frozen=True, array_like=True):
    """Body of an APART record, whose tenant is the record's."""

    apart: bool
    """False: the shard takes the tenant's lanes again, since another shard had some already."""


_BODY = msgspec.msgpack.Decoder(ApartBody)


def apart_body(*, apart: bool) -> bytes:
    """Return the body of an APART record."""
    return msgspec.msgpack.encode(ApartBody(apart))


def has_traces(state: ShardState, tenant: str) -> bool:
    """Return whether a shard has or had records or lanes of a tenant."""
    return bool(state.lane_count(tenant)) or any(key[0] == tenant for key in state.next_offset)


def after_apart(state: ShardState, control: Control, n: int) -> frozenset[str]:
    """Return the tenants of which the shard takes nothing after an APART record.

    Args:
        n: number of the chunk with the record.

    Raises:
        Corrupt: the body is malformed, or the shard has something of the tenant.
    """
    if not unpack(_BODY, control.body, "an APART record").apart:
        return state.apart - {control.tenant}
    if has_traces(state, control.tenant):
        raise Corrupt(
            f"chunk {n} of shard {state.shard} sets tenant {control.tenant} apart, of which the shard has data"
        )
    return state.apart | {control.tenant}
