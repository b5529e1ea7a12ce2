"""Types of the answers about tenants: quotas, and an account of use."""

from __future__ import annotations

import msgspec

from weft.cloud_hub.openapi.common import Count, Moment, OfShards


class QuotasAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Declared quotas; `null` for no bound."""

    edges: Count | None
    """Edges that tokens of the cluster log may name."""
    streams: Count | None
    bytes_per_second: Count | None
    """Bytes of batches that links bring, as the edges stored them."""
    stored_bytes: Count | None
    """Recorded: nothing is held to it."""
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


class TenantsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The declared tenants, and `default`, by name."""

    tenants: list[TenantAnswer]
    next_after: str | None


class TokenOfStore(msgspec.Struct, frozen=True, kw_only=True):
    """A declared token. Its secrets are not in the store."""

    name: str
    scope: str | None
    """Null, as other fields, if the release cannot read it: see `unusable`."""
    tenant: str | None
    edge: str | None
    grants: list[str]
    until: str | None
    """End of the last secret; `ended`, or `not paired yet`; null for no end."""
    older_until: Moment | None
    """End of the secret before, while both are in force."""
    last_used: Moment | None
    """Last known use, up to an hour old; null: none is known."""
    secrets: Count
    """Secrets in force."""
    version: Count
    """Number of the entry of the cluster log that declared this."""
    changed: Moment
    by: str
    reason: str
    unusable: str | None
    """Reason for which it opens nothing; null if it can be read."""


class TokensAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Declared tokens by name. Those of a tokens file, and of an issuer, are not among them."""

    tokens: list[TokenOfStore]
    next_after: str | None


class SecretAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was made. It is shown this once."""

    name: str
    token: str
    until: Moment | None
    """Its end; null for none."""


class RemovedTokenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A token that was withdrawn."""

    name: str
    left: Count
    """Number of declared tokens that are left."""


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
    """Bytes of the tables of all rows, where there is a quota of them and this process makes tables."""
    received: ReceivedAnswer
    throttled_seconds: float
    """Time for which links to this process were asked to wait."""
    refused: Count
    """Links and lanes that this process refused for a quota."""
    streams: list[StreamUseAnswer]
    next_after: str | None
