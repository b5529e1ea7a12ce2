"""Tenants and their quotas."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weft.cloud_hub.facts.fact import (
    ALWAYS_THERE,
    CONFIG,
    GROUP,
    TABLE,
    TENANT,
    TOKEN,
    CannotDeclare,
    Decision,
    UnreadableDocument,
    decode,
    encode,
    known_fact,
    listed,
    parse_stream_name,
    read_fact,
)
from weft.protocols.lane import AUDIT_TENANT, NAME_RULE, valid_name
from weft.storage.cluster_log import Change, ClusterState
from weft.storage.table.schemas import SCHEMA, STREAM

Quota = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Quotas(msgspec.Struct, frozen=True, omit_defaults=True):
    """Declared quotas of a tenant; None for no bound."""

    edges: Quota | None = None
    """Number of edges that declared tokens may name."""
    streams: Quota | None = None
    """Number of streams with records or lanes."""
    bytes_per_second: Quota | None = None
    """Bytes of batches a second that links bring."""
    stored_bytes: Quota | None = None
    """Recorded, not enforced."""
    records_per_second: Quota | None = None
    """Records a second that links bring."""
    lanes: Quota | None = None
    """Number of lanes in all shards."""
    links: Quota | None = None
    """Number of edges linked at one time."""
    table_bytes: Quota | None = None
    """Bytes of its tables of all rows. At this size no more rows are written, and the log keeps the records."""


Isolation = Literal["own"] | None
"""Isolation of a tenant: ``own`` for one that is set apart, None for one that shares shards."""


class TenantDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tenant; the name of the fact is that of the tenant."""

    quotas: Quotas = Quotas()
    isolation: Isolation = None
    """A record for people: ``cluster.json`` decides which tenants are set apart."""


def check_tenant(state: ClusterState, tenant: str) -> None:
    """Refuse a fact about a tenant that is not declared."""
    if tenant not in (ALWAYS_THERE, AUDIT_TENANT) and tenant not in state.facts(TENANT):
        raise CannotDeclare(
            f"there is no tenant {tenant!r}: declare it first (`weft hub tenant add`); there are: "
            f"{listed({ALWAYS_THERE, *state.facts(TENANT)})}"
        )


NONE = Quotas()


def set_tenant(
    name: str, quotas: Quotas, cleared: frozenset[str] = frozenset(), *, is_new: bool, isolation: Isolation = None
) -> Decision:
    """Declare a tenant, or change quotas of one.

    Args:
        quotas: new quotas; None leaves a quota unchanged.
        cleared: names of quotas to remove, so that they bound nothing.
        is_new: true to add a tenant, false to change one.
        isolation: of the tenant; None leaves it unchanged.

    Raises:
        CannotDeclare: the name or a quota is not valid; from the decision: a new tenant exists already, or the tenant
            to change does not.
    """
    if not valid_name(name):
        raise CannotDeclare(f"{name!r} is not a valid name of a tenant: {NAME_RULE}")
    if 0 in (quotas.bytes_per_second, quotas.records_per_second):
        raise CannotDeclare("a rate has to be at least 1 a second; to keep a tenant out, withdraw its tokens")

    def decide(state: ClusterState) -> Change | None:
        fact = state.facts(TENANT).get(name)
        if is_new and fact is not None:
            raise CannotDeclare(f"tenant {name} is declared already: `weft hub tenant set` changes its quotas")
        if not is_new and name != ALWAYS_THERE:
            known_fact(state, TENANT, name)
        before = TenantDocument() if fact is None else read_fact(name, TENANT, fact.document, TenantDocument)
        wanted = {field: value for field in Quotas.__struct_fields__ if (value := getattr(quotas, field)) is not None}
        changed = msgspec.structs.replace(before.quotas, **dict.fromkeys(cleared), **wanted)
        document = encode(TenantDocument(changed, isolation or before.isolation), fact.document if fact else None)
        return None if fact is not None and document == fact.document else Change(TENANT, name, document)

    return decide


def remove_tenant(name: str) -> Decision:
    """Withdraw a tenant that has no token, stream, group, configuration, schema or table in the cluster log.

    Raises:
        CannotDeclare: from the decision: there is no such tenant, or it has some.
    """

    def decide(state: ClusterState) -> Change:
        known_fact(state, TENANT, name)
        tokens = [token for token, fact in state.facts(TOKEN).items() if tenant_of_token(fact.document) == name]
        if tokens:
            raise CannotDeclare(f"tenant {name} has tokens: {listed(tokens)}. Withdraw them first")
        streams = [each for each in state.facts(STREAM) if parse_stream_name(each)[0] == name]
        if streams:
            raise CannotDeclare(f"edges of streams are declared: {listed(streams)}. Withdraw them first")
        others = (each for kind in (GROUP, CONFIG, SCHEMA, TABLE) for each in state.facts(kind))
        if found := [each for each in others if parse_stream_name(each)[0] == name]:
            raise CannotDeclare(
                f"groups, configurations, schemas or tables of it are declared: {listed(found)}. Withdraw them first"
            )
        return Change(TENANT, name, None)

    return decide


class DeclaredQuotas:
    """Quotas by tenant. A document that this release cannot read sets none, and is in ``unusable``."""

    def __init__(self) -> None:
        self._of: dict[str, Quotas] = {}
        self.unusable: dict[str, str] = {}
        """Names of tenants whose declaration cannot be read, each with the reason."""

    def refresh(self, state: ClusterState) -> bool:
        """Apply the declarations of the cluster log. Return whether quotas changed."""
        before, self._of, self.unusable = self._of, {}, {}
        for name, fact in state.facts(TENANT).items():
            try:
                found = decode(fact.document, TenantDocument).quotas
            except UnreadableDocument as error:
                self.unusable[name] = str(error)
                continue
            if found != NONE:
                self._of[name] = found
        return self._of != before

    def of(self, tenant: str) -> Quotas:
        """Return the quotas of a tenant; quotas without a declaration are None."""
        return self._of.get(tenant, NONE)


class _OfTenant(msgspec.Struct):
    """The part of a token's document that names its tenant."""

    tenant: str = "default"


def tenant_of_token(document: bytes) -> str | None:
    """Return the tenant of a token; None if this release cannot read it."""
    try:
        return decode(document, _OfTenant).tenant
    except UnreadableDocument:
        return None
