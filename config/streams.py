"""Streams of an edge node, the disk space for them, and the links that carry them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta, field

from weft.config.errors import Finding, KeyPath
from weft.config.functions.settings import Payload
from weft.config.functions.step import FunctionStep
from weft.config.payload_schema.model import FIELDS_MAX, PayloadSchema, SchemaField, check_schema
from weft.config.units import Count, Duration, Filters, MiB, Path, Section, Size

FUNCTIONS_MAX = 32
"""Largest number of functions of one stream. Split a longer chain into streams: each can be inspected on its own."""
INPUTS_MAX = 64
"""Largest number of streams that one stream is derived from."""


class CheckedSchema(PayloadSchema, frozen=True, kw_only=True):
    """Schema of the messages of a stream, which the node checks when it takes them.

    `schema: FILE` is short for `schema: {file: FILE}`.
    """

    file: Annotated[
        Path | None,
        Meta(
            description="File with the schema, in any form that `weft hub schema set` takes: YAML, JSON Schema, a "
            "schema of Avro, or a descriptor set of Protobuf. It is read when the configuration is read. Beside it "
            "only `message` may be set."
        ),
    ] = None
    fields: Annotated[
        dict[str, Annotated[SchemaField, Meta(extra_json_schema={"x-short": "type"})]],
        Meta(max_length=FIELDS_MAX, description="Fields of the payloads, by name. Other fields are not looked at."),
    ] = field(default_factory=dict)

    def with_its_file(self, parse: Callable[..., Any]) -> Self:
        """Return the schema with what its file has, if it names one. Blocks.

        Raises:
            ValueError, ConfigError: the file cannot be used, or settings are given beside it.
        """
        if self.file is None:
            return self
        if self != type(self)(file=self.file, message=self.message):
            raise ValueError("the file has format and fields of its own: remove the others here, or `file`")
        # Imported here: few edges have such a file.
        from weft.config.payload_schema.documents import read_schema_file

        try:
            text = read_schema_file(self.file, self.message).text
        except ValueError as error:
            raise ValueError(f"{self.file}: {error}") from None
        found = parse(text, self.file, PayloadSchema, lambda schema: list(check_schema(schema))).config
        return msgspec.structs.replace(self, **{name: getattr(found, name) for name in PayloadSchema.__struct_fields__})


def check_checked(schema: CheckedSchema, at: KeyPath) -> list[Finding]:
    """Return the problems of a schema in an edge's configuration.

    Args:
        at: place of the schema in the configuration.
    """
    if not schema.fields:
        return [Finding(at, "has no fields: set `fields`, such as `{temperature: float}`, or `file`")]
    return [*check_schema(schema, at), *_arrays(schema, at)]


def _arrays(schema: PayloadSchema, at: KeyPath) -> list[Finding]:
    """Return the fields that would have an array looked at more than once: a check is one step of the node."""
    known: dict[Any, str] = {}
    found = []
    for name, each in schema.fields.items():
        if each.type.item is not None and (other := known.setdefault(each.path(name), name)) != name:
            message = f"is the same array as {other}, and a node looks at each array once. Remove one of the two"
            found.append(Finding((*at, "fields", name), message))
    return found


class Disk(Section, frozen=True, kw_only=True):
    """Disk space of the node's log, and how it is written."""

    budget_bytes: Annotated[
        Size,
        Meta(
            ge=16 * MiB,
            description="Maximum disk space of the log, to the byte, as it is compressed. When the budget is used up, "
            "the node deletes records that a hub has acknowledged. It then deletes the oldest records of streams with "
            "`when_full: drop_oldest` and records each loss. After that the log refuses records: "
            "devices get no acknowledgement and send again.",
        ),
    ] = field(default=16 << 30, name="budget")
    segment_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB, le=1 << 30)] | None,
        Meta(
            description="Size of one file of the log, which is the unit in which space is freed. At most a "
            "quarter of the budget. Unset: 64 MiB or an eighth of the budget, whichever is less."
        ),
    ] = field(default=None, name="segment")
    low_water_bytes: Annotated[
        Size | None,
        Meta(
            description="Space left for records in the budget below which the node warns. Unset: a tenth of the budget."
        ),
    ] = field(default=None, name="low_water")
    compression: Annotated[
        Literal["zstd", "none"],
        Meta(description="Compression of batches of 4 KiB and more. `none` saves CPU and wears flash more."),
    ] = "zstd"
    compression_level: Annotated[
        int, Meta(ge=1, le=19, description="zstd level of the log: higher is smaller and slower.")
    ] = 1
    card_endurance_bytes: Annotated[
        Size | None,
        Meta(
            description="Endurance of the SD card or eMMC in bytes written (TBW), as its maker states it. Status "
            "and metrics then show how long the card lasts at the present rate."
        ),
    ] = field(default=None, name="card_endurance")


class Retain(Section, frozen=True, kw_only=True):
    """Retention of a stream's records on the node."""

    time_s: Annotated[
        Annotated[Duration, Meta(ge=1)] | None,
        Meta(
            description="Age at which records are deleted; some stay up to half as long again. Records that no "
            "hub has by then are recorded as lost (`expired`). Unset: age does not matter."
        ),
    ] = field(default=None, name="time")
    size_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB)] | None,
        Meta(
            description="Maximum disk space of the stream in the log. `when_full` decides what happens when it is "
            "used up. Unset: only the disk's budget counts."
        ),
    ] = field(default=None, name="size")


class Stream(Section, frozen=True, kw_only=True):
    """A stream, and the topics or streams that its records come from. Devices are keys in it: streams are few."""

    from_: Annotated[
        Filters,
        Meta(
            description="MQTT filter, or list of filters, of the messages that this stream keeps. Named levels "
            'such as `"plant/{line}/+/telemetry"` become columns of the table. A message that several '
            "streams match is kept in each of them. Every stream has `from` or `from_stream`, unless a `route` of "
            "another stream names it."
        ),
    ] = field(default=(), name="from")
    from_stream: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1, max_length=INPUTS_MAX)],
        Meta(
            description="Stream, or list of streams, of this node that this one is derived from. Its functions read "
            "their records from the log, behind the disk's sync, and write their results to this stream."
        ),
    ] = ()
    functions: Annotated[
        tuple[FunctionStep, ...],
        Meta(
            max_length=FUNCTIONS_MAX,
            description="Functions that each record goes through, in this order, before it is in this stream. Records "
            "that cannot be read, or for which an expression fails, go to the stream `<name>-errors`.",
        ),
    ] = ()
    raw: Annotated[
        Literal["discard"] | Retain | None,
        Meta(
            description="Treatment of the original messages, for a stream with `from` and `functions`. Unset: they "
            "are deleted once the functions have read them. `{time: 7d, size: 1GiB}` keeps them longer, so that they "
            "can be replayed. `discard` writes none of them to the disk, which works if no function has a memory."
        ),
    ] = None
    payload: Annotated[
        Payload | None,
        Meta(
            extra_json_schema={"x-short": "format"},
            description="Format of the payloads. Unset: `bytes`, or that of the stream that this one is derived from.",
        ),
    ] = None
    schema: Annotated[
        Annotated[CheckedSchema, Meta(extra_json_schema={"x-short": "file"})] | None,
        Meta(
            description="Schema of the messages that match `from`, which are checked before they are acknowledged. "
            "`on_misfit` decides about those that do not fit. Unset: messages are not checked. The schema of a hub's "
            "table is declared there, by `weft hub schema set`."
        ),
    ] = None
    on_misfit: Annotated[
        Literal["accept", "dead_letter", "refuse"],
        Meta(
            description="What becomes of a message that does not fit `schema`. `accept` stores and counts it. "
            "`dead_letter` stores it with the reason in the stream `<name>-errors`, and not in this one. `refuse` "
            "answers that it does not fit, and stores it nowhere. Where there is no such answer, the message goes to "
            "`<name>-errors` alone. That is so at QoS 0, by MQTT before 5.0, by AMQP without confirms or in a "
            "transaction, for wills, and for messages of `sources`."
        ),
    ] = "accept"
    misfits: Annotated[
        Literal["refuse", "take"],
        Meta(
            description="Treatment of messages posted by HTTP to the stream's name that do not fit it. `from` does "
            "not match their topic, or `payload` is `json` and they are not JSON. `refuse` answers 422 or 400 and "
            "stores nothing of the request. `take` accepts the messages. `weft edge status` counts both. Where there "
            "is a `schema`, `on_misfit` decides about payloads."
        ),
    ] = "refuse"
    resent: Annotated[
        Literal["flag", "suppress"],
        Meta(
            description="Treatment of a QoS 1 message that a device with a persistent session sends again "
            "although it is already in the log. `flag` stores it again, marked as resent. `suppress` "
            "only acknowledges it."
        ),
    ] = "flag"
    when_full: Annotated[
        Literal["refuse", "drop_oldest"],
        Meta(
            description="What happens when there is no room and no hub has the oldest records. `refuse` "
            "acknowledges no more messages, so that devices keep them and send again. `drop_oldest` "
            "deletes the oldest records of this stream and records the loss (`budget`)."
        ),
    ] = "refuse"
    retain: Annotated[Retain, Meta(description="How long records stay; unset: until their space is needed.")] = Retain()
    replicate: Annotated[
        bool,
        Meta(
            description="`false` keeps the stream on this node: no link carries it, and only `retain` deletes its "
            "records."
        ),
    ] = True


class Unrouted(Section, frozen=True, kw_only=True):
    """Treatment of messages whose topic no stream matches."""

    policy: Annotated[
        Literal["keep", "live", "refuse"],
        Meta(
            description="`keep` writes them to the stream `unrouted` before they are acknowledged; no link carries "
            "it. `live` delivers them to subscribers and stores them only for persistent sessions that are "
            "subscribed. If there is no subscriber, MQTT 5.0 clients get reason code 0x10. `refuse` rejects them: "
            "MQTT 5.0 clients get reason code 0x90, for others see `auth.refused_publish`. `unrouted: live` is short "
            "for `unrouted: {policy: live}`."
        ),
    ] = "keep"
    time_s: Annotated[
        Duration,
        Meta(ge=1, description="Age at which records of the stream `unrouted` are deleted, as with `retain.time`."),
    ] = field(default=86_400.0, name="time")
    size_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB)] | None,
        Meta(
            description="Maximum disk space of the stream `unrouted`; its oldest records are deleted first. "
            "Unset: 64 MiB or a sixteenth of the budget, whichever is less."
        ),
    ] = field(default=None, name="size")


# Settings of the state that an edge node keeps of its MQTT clients, and of the encryption of its data directory.


class State(Section, frozen=True, kw_only=True):
    """State of MQTT clients across restarts. Changes go into the log (the *journal*), then into a database."""

    save_interval_s: Annotated[
        Duration,
        Meta(
            ge=0.1,
            le=3600,
            description="How often the journal is folded into the database, so that the log can delete it. A "
            "longer interval reduces flash wear and makes a start after a crash slower.",
        ),
    ] = field(default=5.0, name="save_interval")
    save_bytes: Annotated[
        Size,
        Meta(
            ge=64 << 10,
            description="Size at which the journal is folded into the database before `save_interval` has passed.",
        ),
    ] = field(default=4 * MiB, name="save_size")
    journal_bytes: Annotated[
        Size,
        Meta(
            ge=1 * MiB,
            description="Maximum size of the journal that is not in the database, reached when the database "
            "cannot be written. Above it, changes to sessions are refused: clients cannot connect or "
            "subscribe, and publishes from persistent sessions are not acknowledged.",
        ),
    ] = field(default=64 * MiB, name="journal")
    journal_bytes_per_user: Annotated[
        Size,
        Meta(
            ge=64 << 10,
            description="Size of the changes in the journal that sessions of one user may make in a second; four "
            "times as much at once. Without a user name, it is of one address. Beyond it, its clients wait with "
            "CONNECT, SUBSCRIBE and UNSUBSCRIBE.",
        ),
    ] = field(default=4 * MiB, name="journal_per_user")
    positions_interval_s: Annotated[
        Duration,
        Meta(
            ge=0.1,
            le=3600,
            description="How often the read positions of connected sessions are saved. Messages acknowledged "
            "since the last save may be redelivered after a crash.",
        ),
    ] = field(default=1.0, name="positions_interval")
    resent_window: Annotated[
        Count,
        Meta(
            le=65_535,
            description="Number of newest messages per session by which the node recognises a message that is "
            "sent again. Set it above the number that clients leave unacknowledged: 20 with Paho and "
            "Mosquitto.",
        ),
    ] = 1_000
    resent_total: Annotated[
        Count,
        Meta(
            le=100_000_000,
            description="The same for all sessions together: a few bytes per message from devices that send many "
            "at a time, about 250 bytes otherwise. Above it, the node forgets messages of the "
            "sessions that published longest ago; above `limits.user_share`, those of the user's sessions.",
        ),
    ] = 200_000
    idempotency_window_s: Annotated[
        Duration,
        Meta(
            ge=60,
            le=30 * 86_400,
            description="Time for which the node remembers the `Idempotency-Key` of an HTTP request, so that the same "
            "request stores nothing twice.",
        ),
    ] = field(default=86_400.0, name="idempotency_window")
    idempotency_keys: Annotated[
        Count,
        Meta(
            le=10_000_000,
            description="Number of such keys that are remembered, about 500 bytes of memory each. Above it, the oldest "
            "are forgotten; above `limits.user_share`, the user's oldest.",
        ),
    ] = 100_000
    backlog_buffer_bytes: Annotated[
        Size,
        Meta(
            ge=64 << 10,
            description="Maximum memory for records that are read from the log for sessions that are behind.",
        ),
    ] = field(default=16 * MiB, name="backlog_buffer")
    backlog_page_bytes: Annotated[
        Size, Meta(ge=1024, le=64 * MiB, description="Maximum number of bytes read at a time for one session.")
    ] = field(default=64 << 10, name="backlog_page")
    backlog_page_records: Annotated[
        Count, Meta(le=100_000, description="Maximum number of messages read at a time for one session.")
    ] = 250
    backlog_reads: Annotated[
        Count,
        Meta(
            le=64,
            description="Maximum number of concurrent disk reads for sessions that are behind, about 1 MiB of "
            "memory each.",
        ),
    ] = 2
    topics_log_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB)] | None,
        Meta(
            description="Size of the log above which messages that no stream matches may be deleted before an "
            "absent session has received them. At most a quarter of `disk.budget` is used. Unset: 1 "
            "GiB or that quarter, whichever is less."
        ),
    ] = field(default=None, name="topics_log")


class Encryption(Section, frozen=True, kw_only=True):
    """Encryption of the node's data directory. Set exactly one source of the key: 32 bytes in hex or base64."""

    key_file: Annotated[
        Path | None,
        Meta(description="File with the key, which other users cannot read. A second line may hold the key before it."),
    ] = None
    command: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...],
        Meta(
            max_length=64,
            description="Command and its arguments, run without a shell, that prints the key within 30 s: for a TPM "
            "or a vault.",
        ),
    ] = ()
    environment: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="Variable of the node's environment that holds the key."),
    ] = None
