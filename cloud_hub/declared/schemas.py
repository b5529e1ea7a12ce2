"""Changes of streams' schemas: each function returns a decision for ``ClusterLog.append``."""

from __future__ import annotations

from weft.cloud_hub.declared.changes import CannotDeclare, Decision, check_tenant, known_fact
from weft.cloud_hub.declared.documents import stream_name
from weft.config.payload_schema.compatibility import Compatibility, incompatible
from weft.config.payload_schema.model import PayloadSchema
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.cluster_log.entry import DOCUMENT_BYTES_MAX
from weft.storage.cluster_log.log import Change
from weft.storage.cluster_log.state import ClusterState
from weft.storage.table.schemas import SCHEMA, UnreadableSchema, decode, encode


def set_schema(key: StreamKey, schema: PayloadSchema, compatibility: Compatibility | None = None) -> Decision:
    """Declare the schema of a stream, or another version of it. The number of its entry is its version.

    Args:
        compatibility: rule that this version has to keep to the one before, and later ones to it; None for the rule
            that holds.

    Raises:
        CannotDeclare: a name is not valid, or the schema is too long; from the decision: the tenant is unknown, or
            the version before is not kept to.
    """
    for each in key:
        if not valid_name(each):
            raise CannotDeclare(f"{each!r} cannot be a name: {NAME_RULE}")
    name = stream_name(key)
    size = len(encode(schema))
    if size > DOCUMENT_BYTES_MAX - 100:
        raise CannotDeclare(
            f"the schema has {size} bytes, more than {DOCUMENT_BYTES_MAX >> 10} KiB: use shorter descriptions, or "
            "fewer fields"
        )

    def decide(state: ClusterState) -> Change | None:
        check_tenant(state, key[0])
        fact = state.facts(SCHEMA).get(name)
        if fact is None:
            return Change(SCHEMA, name, encode(schema, compatibility=compatibility or "none"))
        try:
            known = decode(fact.document, fact.version)
        except UnreadableSchema:  # of a later release, which it replaces
            return Change(SCHEMA, name, encode(schema, fact.version, compatibility or "none"))
        rule = compatibility or known.compatibility
        if (known.schema, known.compatibility) == (schema, rule):
            return None
        if broken := incompatible(known.schema, schema, rule):
            raise CannotDeclare(
                f"the schema of {name} is not compatible ({rule}) with version {known.version}: {'; '.join(broken)}. "
                "Keep to it, or declare --compatibility none"
            )
        return Change(SCHEMA, name, encode(schema, fact.version, rule))

    return decide


def remove_schema(key: StreamKey) -> Decision:
    """Withdraw the schema of a stream.

    Raises:
        CannotDeclare: from the decision: it has none.
    """
    name = stream_name(key)

    def decide(state: ClusterState) -> Change:
        known_fact(state, SCHEMA, name)
        return Change(SCHEMA, name, None)

    return decide
