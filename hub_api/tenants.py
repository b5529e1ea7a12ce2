"""Tenants, their quotas and their use of the hub: bodies, answers and operations."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from weft.hub_api.answers import Count, Moment, OfShards
from weft.hub_api.operation import OF_CHANGES, READING, REASON, TENANT, Name, Operation, Parameter, Reason, after, limit
from weft.hub_api.rights import Right, Scope


class QuotasAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Declared quotas; `null` for no bound."""

    edges: Count | None
    """Edges that tokens of the cluster log may name."""
    streams: Count | None
    bytes_per_second: Count | None
    """Bytes of batches that links bring, as the edges stored them."""
    stored_bytes: Count | None
    """Recorded, not enforced."""
    records_per_second: Count | None
    lanes: Count | None
    links: Count | None
    """Edges that are linked at one time."""
    table_bytes: Count | None
    """Bytes of the tables of all rows."""


class TenantAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A declared tenant."""

    tenant: str
    version: Count
    """Number of the entry of the cluster log that declared this; 0 for `default` without a declaration."""
    quotas: QuotasAnswer
    """Without a bound, too, if the release cannot read them: see `unusable`."""
    isolation: Literal["own"] | UnsetType | None = UNSET
    """`own` for a tenant with shards and tables below a prefix of its own; null for one that shares those of others."""
    tokens: Count | UnsetType = UNSET
    """Declared tokens of the tenant that the release can read."""
    streams_with_edges: Count | UnsetType = UNSET
    """Streams of the tenant for which edges are declared (`weft hub stream expect`)."""
    changed: Moment | UnsetType | None = UNSET
    """Time of the declaration; null without one."""
    by: str | UnsetType = UNSET
    """Author of the declaration; empty without one."""
    reason: str | UnsetType = UNSET
    unusable: str | UnsetType | None = UNSET
    """Reason why the release cannot read the declaration; null if it can."""


class TenantsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The declared tenants, and `default`, by name."""

    tenants: list[TenantAnswer]
    next_after: str | None


class RemovedTenantAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant that was withdrawn. Its records, streams and tables stay."""

    tenant: str


class ReceivedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Data that links brought to this process since `since`, repetitions included."""

    bytes: Count
    records: Count


class StreamUseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one stream."""

    stream: str
    records: Count
    """Records in the log since its begin, of all shards."""
    received: ReceivedAnswer
    table_bytes: Count | None
    """Bytes of the stream's table of all rows, as of the last look for small files; null: unknown to this process."""


class UsageAnswer(OfShards, frozen=True, kw_only=True):
    """The use of the hub by one tenant."""

    tenant: str
    quotas: QuotasAnswer
    since: Moment
    """Start of this process."""
    share: float
    """Part of the rates that this process lets in; the others have the rest."""
    links: Count
    """Linked edges, of all processes as of some seconds ago."""
    lanes: Count
    streams_count: Count
    table_bytes: Count | None
    """Bytes of the tables of all rows, if they have a quota and this process writes tables."""
    received: ReceivedAnswer
    throttled_seconds: float
    """Time for which links to this process were slowed."""
    refused: Count
    """Links and lanes that this process refused for a quota."""
    streams: list[StreamUseAnswer]
    next_after: str | None


_Quota = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None


_QuotaRate = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None


class TenantQuotas(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: all quotas of a tenant. One that is left out is no bound."""

    edges: _Quota = None
    streams: _Quota = None
    bytes_per_second: _QuotaRate = None
    stored_bytes: _Quota = None
    records_per_second: _QuotaRate = None
    lanes: _Quota = None
    links: _Quota = None
    table_bytes: _Quota = None
    reason: Reason = ""
    """For the record of administrative acts."""
    version: Annotated[int, Meta(ge=0)] | None = None
    """Version of the tenant that was changed, 0 for a new one. It is refused after another change of the tenant."""


_TENANT_OF_PATH = Parameter("tenant", Name, "Name of the tenant.", "path", required=True)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "usage",
        "get",
        "/v1/usage",
        "Return what a tenant uses of the hub, its quotas, and the records received of each stream.",
        "Links, lanes, streams and records are those of all shards. `received`, `throttled_seconds` and `refused` "
        "are counted by this process since `since`; what an edge sends again counts again. Streams are listed by "
        "name. Needs the right `read`.",
        UsageAnswer,
        parameters=(TENANT, after(), limit("streams")),
        errors=READING - {500},
    ),
    Operation(
        "tenant",
        "get",
        "/v1/tenants/{tenant}",
        "Return the quotas of a declared tenant.",
        "A quota that is null bounds nothing. `version` is the entry of the cluster log that declared the tenant.",
        TenantAnswer,
        (Scope.GRANTED,),
        parameters=(_TENANT_OF_PATH,),
        errors=frozenset({400, 401, 403, 404, 421, 503}),
        right=Right.TENANTS,
        command="weft hub tenant list",
    ),
    Operation(
        "set_tenant",
        "put",
        "/v1/tenants/{tenant}",
        "Declare all quotas of a tenant, and the tenant if it is new.",
        "Replaces all quotas: one that is left out bounds nothing. With `version`, the request is refused with 409 "
        "after another change. The answer comes when the change is durable; processes follow within two seconds.",
        TenantAnswer,
        (Scope.GRANTED,),
        parameters=(_TENANT_OF_PATH,),
        errors=OF_CHANGES,
        body=TenantQuotas,
        right=Right.TENANTS,
        command="weft hub tenant set",
    ),
    Operation(
        "remove_tenant",
        "delete",
        "/v1/tenants/{tenant}",
        "Withdraw a tenant for which nothing is declared any more. Its records, streams and tables stay.",
        "Refused with 409 while a token, stream, group, configuration, schema or table is declared for it. The "
        "answer comes when the change is durable, and declaring the tenant again reverts it.",
        RemovedTenantAnswer,
        (Scope.GRANTED,),
        parameters=(_TENANT_OF_PATH, REASON),
        errors=frozenset({400, 401, 403, 409, 421, 503}),
        right=Right.TENANTS,
        command="weft hub tenant remove",
    ),
    Operation(
        "tenants",
        "get",
        "/v1/tenants",
        "Return the declared tenants with their quotas, by name.",
        "Includes `default`, which needs no declaration. A quota that is null bounds nothing.",
        TenantsAnswer,
        (Scope.GRANTED,),
        parameters=(after(), limit("tenants")),
        errors=frozenset({400, 401, 403, 421, 503}),
        right=Right.TENANTS,
        command="weft hub tenant list",
    ),
)
"""Operations, in the order of the document."""
