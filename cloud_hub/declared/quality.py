"""Changes of streams' quality rules: each function returns a decision for ``ClusterLog.append``."""

from __future__ import annotations

from collections.abc import Iterator

from weft.cloud_hub.declared.changes import CannotDeclare, Decision, check_tenant, known_fact
from weft.cloud_hub.declared.documents import TABLE, TableDocument, UnreadableDocument, decode, stream_name
from weft.config.payload_schema.model import PayloadSchema
from weft.config.payload_schema.quality import QualityRules
from weft.protocols.lane import NAME_RULE, valid_name
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.cluster_log.entry import DOCUMENT_BYTES_MAX
from weft.storage.cluster_log.log import Change
from weft.storage.cluster_log.state import ClusterState
from weft.storage.table.quality.checks import OWN_KEYS
from weft.storage.table.quality.declared import QUALITY, encode

_NUMBERS = ("int", "float", "decimal")


def set_quality(key: StreamKey, rules: QualityRules) -> Decision:
    """Declare the quality rules of a stream instead of those before.

    Raises:
        CannotDeclare: a name is not valid, or the rules are too long; from the decision: the tenant is unknown, or the
            stream has no table of all rows.
    """
    for each in key:
        if not valid_name(each):
            raise CannotDeclare(f"{each!r} cannot be a name: {NAME_RULE}")
    name, document = stream_name(key), encode(rules)
    if len(document) > DOCUMENT_BYTES_MAX:
        raise CannotDeclare(f"the rules have more than {DOCUMENT_BYTES_MAX >> 10} KiB: use shorter names, or fewer")

    def decide(state: ClusterState) -> Change | None:
        check_tenant(state, key[0])
        table, fact = state.facts(TABLE).get(name), state.facts(QUALITY).get(name)
        if table is not None and _has_no_history(table.document):
            raise CannotDeclare(
                f"{name} has a latest table instead of a table of all rows, with which quality rules are counted"
            )
        return None if fact is not None and fact.document == document else Change(QUALITY, name, document)

    return decide


def _has_no_history(document: bytes) -> bool:
    try:
        latest = decode(document, TableDocument).latest
    except UnreadableDocument:
        return False
    return latest is not None and latest.instead


def remove_quality(key: StreamKey) -> Decision:
    """Withdraw the quality rules of a stream.

    Raises:
        CannotDeclare: from the decision: it has none.
    """
    name = stream_name(key)

    def decide(state: ClusterState) -> Change:
        known_fact(state, QUALITY, name)
        return Change(QUALITY, name, None)

    return decide


def doubts(rules: QualityRules, schema: PayloadSchema | None) -> Iterator[str]:
    """Yield what may be a mistake in rules: a rule that the stream's schema, as it is now, gives nothing to check."""
    for name, rule in rules.rules.items():
        if schema is None and (rule.fits or rule.range is not None):
            yield f"{name}: nothing is checked until the stream has a schema (`weft hub schema set`)"
            continue
        fields = {} if schema is None else schema.fields
        if rule.unique is not None:
            for each in rule.unique.fields:
                if each not in fields and each not in OWN_KEYS:
                    yield f"{name}: {each!r} is no field of the stream's schema, and is taken for a topic level"
        if rule.not_null is not None and rule.not_null not in fields:
            yield f"{name}: {rule.not_null!r} is no field of the stream's schema, and is taken for a topic level"
        if rule.range is None:
            continue
        field = fields.get(rule.range.field_)
        if field is None:
            yield f"{name}: the stream's schema has no field {rule.range.field_!r}, so nothing is checked"
        elif field.type.name not in _NUMBERS:
            yield f"{name}: {rule.range.field_!r} is {field.type}, and a range needs numbers, so nothing is checked"
