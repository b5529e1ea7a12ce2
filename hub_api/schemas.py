"""Declared schemas: bodies, answers and operations."""

from __future__ import annotations

import msgspec

from weft.config.payload_schema.model import Compatibility, PayloadSchema
from weft.hub_api.answers import Count, Moment, NextAfter
from weft.hub_api.operation import (
    OF_CHANGES,
    OF_MESSAGES,
    OF_ONE_STREAM,
    REASON,
    SCHEMA_BYTES_MAX,
    STREAM,
    TENANT,
    Number,
    Operation,
    Parameter,
    Reason,
    after,
    limit,
)
from weft.hub_api.rights import Right, Scope


class SchemaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the declared schema of a stream's payloads."""

    tenant: str
    stream: str
    version: Count
    """Number of the entry of the cluster log that declared it; rows have it in the column `_schema`."""
    before: Count | None
    """The version before; null for the first."""
    compatibility: Compatibility
    """Rule that the next version has to keep."""
    schema: PayloadSchema
    changed: Moment
    by: str
    reason: str


class SchemaOfStream(msgspec.Struct, frozen=True, kw_only=True):
    """A declared schema in a list."""

    tenant: str
    stream: str
    version: Count
    """Number of the entry of the cluster log that declared it."""
    format: str | None
    """Null, as other fields, if the release cannot read it: see `unusable`."""
    fields: Count | None
    """Number of its fields."""
    compatibility: Compatibility | None
    personal: list[str] | None
    """Fields with personal data."""
    changed: Moment
    by: str
    reason: str
    unusable: str | None
    """Reason why the release cannot read it; null if it can."""


class SchemasAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The declared schemas, by tenant and stream."""

    schemas: list[SchemaOfStream]
    next_after: NextAfter


class RemovedSchemaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A schema that was withdrawn. The table keeps its columns; they are null in later rows."""

    tenant: str
    stream: str


class DeclaredSchema(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: the schema of a stream's payloads, or another version of it."""

    schema: PayloadSchema
    compatibility: Compatibility | None = None
    """Rule between this version and the one before, and between it and the next; null for the rule in force."""
    reason: Reason = ""
    """For the record of administrative acts."""


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "schema",
        "get",
        f"{OF_ONE_STREAM}/schema",
        "Return a version of the declared schema of a stream's payloads, the newest one by default.",
        "Includes versions that were replaced or withdrawn. A stream without a schema, or without that version, is "
        "answered with 404.",
        SchemaAnswer,
        parameters=(STREAM, TENANT, Parameter("version", Number, "Version, also one that was replaced or withdrawn.")),
        errors=OF_MESSAGES,
        right=Right.READ,
        command="weft hub schema get",
    ),
    Operation(
        "set_schema",
        "put",
        f"{OF_ONE_STREAM}/schema",
        "Declare the schema of a stream's payloads, or another version of it.",
        "The answer comes when the declaration is durable. Records that come later have its columns in the table; "
        "earlier rows stay as they are. A version that breaks the rule `compatibility` of the one before is "
        "refused.",
        SchemaAnswer,
        (Scope.GRANTED,),
        parameters=(STREAM, TENANT),
        errors=OF_CHANGES,
        body=DeclaredSchema,
        body_bytes_max=SCHEMA_BYTES_MAX,
        right=Right.DECLARE,
        command="weft hub schema set",
    ),
    Operation(
        "remove_schema",
        "delete",
        f"{OF_ONE_STREAM}/schema",
        "Withdraw the schema of a stream. Its table keeps its columns; they are null in later rows.",
        "The answer comes when the withdrawal is durable. Versions stay readable by their numbers.",
        RemovedSchemaAnswer,
        (Scope.GRANTED,),
        parameters=(STREAM, TENANT, REASON),
        errors=frozenset({400, 401, 403, 409, 421, 503}),
        right=Right.DECLARE,
        command="weft hub schema remove",
    ),
    Operation(
        "schemas",
        "get",
        "/v1/schemas",
        "Return the declared schemas of all tenants, without their fields, by tenant and stream.",
        "Each is the version in force. Where this release cannot read it, `unusable` has the reason.",
        SchemasAnswer,
        (Scope.ADMIN,),
        parameters=(after(), limit("schemas")),
        errors=frozenset({400, 401, 403, 421, 503}),
        right=Right.STATUS,
        command="weft hub schema list",
    ),
)
"""Operations, in the order of the document."""
