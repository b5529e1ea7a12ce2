"""Settings of what a pipeline reads: a stream, or several, of a hub's store, and tables beside them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from weft.config.payload_schema.model import PayloadSchema
from weft.config.values import Count, OneOf, Path, Section, Store

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Names = Annotated[tuple[str, ...], Meta(min_length=1, max_length=10_000)]
StreamNames = Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(min_length=1)]


class PipelineSource(Section, frozen=True, kw_only=True):
    """Stream that the pipeline reads, or several, in the store of their hub. Credentials of an object store come from
    the environment."""

    store: Annotated[Store, Meta(description="Root of the hub's store, as the hub's `store`.")]
    stream: Annotated[Name | None, Meta(description="Name of the stream. Give this or `streams`.")] = None
    streams: Annotated[
        StreamNames | None,
        Meta(
            description="Names of several streams of the tenant, read as one. Each row has the name of its stream in "
            "the column `_stream`, and null in columns that its stream lacks. A name may be added later."
        ),
    ] = None
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

    @property
    def one(self) -> str:
        """Return the stream of a pipeline that reads one."""
        assert self.stream is not None
        return self.stream

    @property
    def all_streams(self) -> tuple[str, ...]:
        """Return the names of the streams."""
        return (self.one,) if self.streams is None else self.streams


ColumnType = Annotated[str, Meta(extra_json_schema={"x-unit": "field_type"})]


class DimensionTable(OneOf, frozen=True, kw_only=True):
    """Table beside the stream, which SQL of the steps reads by its name, such as to join the names of machines. It is
    read again for each micro-batch."""

    noun: ClassVar[str] = "table"
    beside: ClassVar[tuple[str, ...]] = ("columns", "delimiter")

    csv: Annotated[
        Path | None, Meta(description="File of comma-separated values in UTF-8 whose first line has the column names.")
    ] = None
    delta: Annotated[
        Store | None,
        Meta(description="Folder of a Delta table, `s3://bucket/path`, `gs://bucket/path` or `az://container/path`."),
    ] = None
    columns: Annotated[
        Annotated[dict[str, ColumnType], Meta(min_length=1, max_length=256)] | None,
        Meta(
            description="Types of columns of the CSV file, as in `source.schema`: name -> type. Other columns are "
            "`string`. An empty value is null."
        ),
    ] = None
    delimiter: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1)],
        Meta(description="Character between two values of the CSV file, such as `;`."),
    ] = ","
