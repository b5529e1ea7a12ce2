"""Settings of a pipeline's source: a stream in a hub's store."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from weft.config.payload_schema.model import PayloadSchema
from weft.config.values import Count, Section, Store

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Names = Annotated[tuple[str, ...], Meta(min_length=1, max_length=10_000)]
Text = Annotated[str, Meta(min_length=1)]


class PipelineSource(Section, frozen=True, kw_only=True):
    """Stream that the pipeline reads, in the store of its hub. Credentials of an object store come from the
    environment."""

    store: Annotated[Store, Meta(description="Root of the hub's store, as the hub's `store`.")]
    stream: Annotated[Name, Meta(description="Name of the stream.")]
    tenant: Annotated[Name, Meta(description="Tenant of the stream.")] = "default"
    edges: Annotated[
        Names | None, Meta(description="Edge nodes whose records are read. Unset: records of all edge nodes.")
    ] = None
    keys: Annotated[
        Names | None,
        Meta(description="Keys of the records that are read; topic filters match as in MQTT. Unset: all keys."),
    ] = None
    schema: Annotated[
        PayloadSchema | None,
        Meta(
            description="Format of the payloads, and their fields that become typed columns. A value that does not fit "
            "is null and is named in `_misfit`."
        ),
    ] = None
    since: Annotated[
        Text | None,
        Meta(
            description="Earliest `_time` of the records that are read, as ISO 8601 text; without an offset it is UTC. "
            "Unset: from the first record of the log on."
        ),
    ] = None
    until: Annotated[
        Text | None,
        Meta(
            description="Only records with an earlier `_time` are read, as ISO 8601 text; with `since`, a bounded "
            "backfill of a day. Not with a `window` step. Unset: all later records."
        ),
    ] = None
    records_per_trigger_max: Annotated[
        Count | None,
        Meta(description="Maximum number of records of one micro-batch, shared evenly by the shards of the log."),
    ] = field(default=1_000_000, name="max_records_per_trigger")
