"""Settings of the sinks of pipelines."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from weft.config.pipelines.source import Name, Names, Text
from weft.config.values import Count, OneOf, Path, Section, Size, Store, Urls

MiB = 1 << 20


class SinkSettings(Section, frozen=True, kw_only=True):
    """Base class of the settings of sinks."""

    takes_windows: ClassVar[bool] = False
    """True of a kind that replaces rows by their keys, or keeps none. A window is written again when records of it come
    late: a sink that only adds rows would then have it twice."""


class DeltaTable(SinkSettings, frozen=True, kw_only=True):
    """A Delta table. Each row is in it exactly once, also after a kill or a lost checkpoint."""

    takes_windows: ClassVar[bool] = True

    path: Annotated[
        Store, Meta(description="Folder of the table, `s3://bucket/path`, `gs://bucket/path` or `az://container/path`.")
    ]
    mode: Annotated[
        Literal["append", "upsert", "replace"],
        Meta(
            description="`append` adds rows. `upsert` replaces the rows that have the same `keys`. `replace` replaces "
            "whole partitions of `partition_by`."
        ),
    ] = "append"
    keys: Annotated[
        Names | None,
        Meta(
            description="Columns that identify a row. Required with `upsert`; for windows they are `window_start` and "
            "the columns of `by`."
        ),
    ] = None
    order_by: Annotated[
        Names | None,
        Meta(
            description="With `upsert`: columns that say which of two rows with the same keys is the newer one. Unset: "
            "the record's place in the log, `_shard` and `_offset`."
        ),
    ] = None
    partition_by: Annotated[
        Names | None, Meta(description="Columns by whose values the table is cut into folders.")
    ] = None


class StreamTarget(SinkSettings, frozen=True, kw_only=True):
    """A Weft stream. Rows go over the link protocol and are in its log exactly once."""

    hub: Annotated[Urls, Meta(description="Addresses of the hub's nodes, such as `https://hub.example.com`.")]
    stream: Annotated[Name, Meta(description="Name of the stream that gets the rows.")]
    tenant: Annotated[Name, Meta(description="Tenant of that stream.")] = "default"
    topics: Annotated[
        Names | None,
        Meta(description="Patterns of the rows' keys, such as `alerts/{machine}`, for named columns of the stream."),
    ] = None
    payload: Annotated[
        Literal["bytes", "text", "json"], Meta(description="Kind of the payloads, as for the streams of an edge node.")
    ] = "bytes"
    token_file: Annotated[
        Path | None, Meta(description="File with the token that the hub asks for. Unset: the variable `WEFT_TOKEN`.")
    ] = None
    ca_file: Annotated[
        Path | None, Meta(description="File with the certificates that sign the hub's. Unset: those of the system.")
    ] = None
    spread: Annotated[
        Count,
        Meta(
            le=64,
            description="Number of edges that the rows come from, each in another shard of the hub: 1, 2, 4, 8, 16, 32 "
            "or 64. A pipeline may go on with another number, each row still once.",
        ),
    ] = 1


class Jdbc(SinkSettings, frozen=True, kw_only=True):
    """A table of PostgreSQL. A micro-batch is one transaction, and each row is in the table exactly once."""

    takes_windows: ClassVar[bool] = True

    url: Annotated[
        Text,
        Meta(
            description="Address of the database without a password: `jdbc:postgresql://HOST:PORT/DATABASE?user=NAME`."
        ),
    ]
    table: Annotated[Name, Meta(description="Table that gets the rows: `NAME` or `SCHEMA.NAME`.")]
    keys: Annotated[
        Names | None, Meta(description="Columns that identify a row: it replaces the row with the same values.")
    ] = None
    order_by: Annotated[
        Name | None, Meta(description="With `keys`: column whose highest value decides which of two rows stays.")
    ] = None
    password_file: Annotated[
        Path | None, Meta(description="File on the driver with the password. Unset: `PGPASSWORD` or `~/.pgpass`.")
    ] = None


class Kafka(SinkSettings, frozen=True, kw_only=True):
    """A topic of Kafka. Every row arrives, and a row may arrive twice."""

    brokers: Annotated[Text, Meta(description="Addresses of brokers, such as `kafka-1:9092,kafka-2:9092`.")]
    topic: Annotated[Name, Meta(description="Topic that gets the rows.")]
    key: Annotated[Text | None, Meta(description="SQL expression of the messages' key. `null` for none.")] = "_key"
    value: Annotated[
        Text | None,
        Meta(description="SQL expression of the messages' value. Unset: the payload as it was sent."),
    ] = None
    options_file: Annotated[
        Path | None,
        Meta(
            description="File of `name=value` lines with further options of the Kafka client. Passwords belong there."
        ),
    ] = None


class HubTables(SinkSettings, frozen=True, kw_only=True):
    """The streams' own tables in the hub's store. The pipeline makes them instead of the hub while it runs, and each
    record is a row exactly once. `stream` and `tenant` of the source may have a `*`."""

    joined_size: Annotated[
        Size,
        Meta(
            ge=16 * MiB,
            le=1 << 30,
            description="Size up to which small files are joined, as `tables.joined_size` of the hub.",
        ),
    ] = 512 * MiB
    streams_at_once: Annotated[
        Count, Meta(le=64, description="Number of streams whose jobs the cluster runs at the same time.")
    ] = 8


class Console(SinkSettings, frozen=True, kw_only=True):
    """Standard output, to try a pipeline. Nothing is kept."""

    takes_windows: ClassVar[bool] = True

    rows_max: Annotated[Count, Meta(le=10_000, description="Maximum number of rows shown of each micro-batch.")] = (
        field(default=20, name="rows")
    )


class PipelineSink(OneOf, frozen=True, kw_only=True):
    """Place of the rows that come out of the last step; exactly one."""

    noun: ClassVar[str] = "sink"

    delta: Annotated[
        DeltaTable | None, Meta(extra_json_schema={"x-short": "path"}, description="A table in Delta.")
    ] = None
    stream: Annotated[StreamTarget | None, Meta(description="Another stream of a Weft hub.")] = None
    jdbc: Annotated[Jdbc | None, Meta(description="A table of a database such as PostgreSQL.")] = None
    kafka: Annotated[Kafka | None, Meta(description="A topic of Kafka.")] = None
    tables: Annotated[
        HubTables | None, Meta(description="The streams' own tables in the hub's store. Takes no steps.")
    ] = None
    console: Annotated[Console | None, Meta(description="Standard output, to try a pipeline.")] = None

    @property
    def kind(self) -> str:
        """Return the name of the sink that is given."""
        return self.chosen[0]

    @property
    def settings(self) -> Any:
        """Return the settings of the sink that is given."""
        return self.chosen[1]
