"""``weft hub table``, ``schema`` and ``quality``: what the cluster log declares of the tables of streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import click

from weft.cloud_hub.facts.fact import TABLE, CannotDeclare, parse_stream_name
from weft.cloud_hub.facts.streams import (
    DeclaredTables,
    LatestDocument,
    NoRecords,
    doubts,
    newest_payloads,
    topic_levels,
    wrong_part,
)
from weft.cloud_hub.facts.streams import remove_quality as declare_remove_quality
from weft.cloud_hub.facts.streams import remove_table as declare_remove_table
from weft.cloud_hub.facts.streams import set_quality as declare_set_quality
from weft.cloud_hub.facts.streams import set_table as declare_set_table
from weft.commands.common import config_argument, json_option, load_hub
from weft.commands.hub_access import StoreHub, administration_of, decision_options, declare, on_store, read_facts
from weft.commands.hub_streams import key_of
from weft.commands.running import NotThere, access_options, any_hub_argument, hub_argument, whole
from weft.config.errors import ConfigError
from weft.config.load import parse_rules, parse_schema, rules_text
from weft.config.payload_schema.documents import PayloadSample, differences, incompatible, read_schema_file, yaml_text
from weft.config.units import format_duration, format_size, parse_duration, parse_size
from weft.hub_api.answers import moment
from weft.output import Failed, Refused, counted, harmless, print_json, print_table
from weft.protocols.errors import CodecError
from weft.storage.cluster import open_cluster
from weft.storage.object_store import ObjectStore
from weft.storage.table.schemas import QUALITY, DeclaredQuality, Schemas

if TYPE_CHECKING:
    from weft.commands.running import RunningHub
    from weft.config.payload_schema.documents import FieldChange
    from weft.config.payload_schema.model import Compatibility, PayloadSchema, QualityRules, SchemaFormat
    from weft.protocols.chunk_index import StreamKey
    from weft.storage.cluster_log import ClusterState
    from weft.storage.payloads.decoder import SampleOfSchema
    from weft.storage.table.schemas import StreamQuality


# ``weft hub table``: what the cluster log declares of the tables of streams.

RETAIN_S_MIN, RETAIN_BYTES_MIN = 3600, 1 << 20


@click.command("set")
@config_argument
@click.argument("stream", metavar="[TENANT/]STREAM")
@click.option(
    "--latest",
    metavar="KEY",
    help="Create a latest table, with the newest row for each KEY. It is `_key`, `_edge`, a topic level such as "
    "`machine`, or a field of JSON payloads such as `payload.order.id`. Separate several with commas.",
)
@click.option("--every", metavar="DURATION", help="Interval at which the latest table is written; 1m by default.")
@click.option("--feed", is_flag=True, help="Add a change feed to the latest table, if it has none.")
@click.option(
    "--instead",
    is_flag=True,
    help="Write no table of all rows. Rows that newer ones of their key replaced are lost when the log deletes them.",
)
@click.option("--retain", metavar="DURATION", help="Remove rows that the hub received longer ago, such as `90d`.")
@click.option("--retain-size", metavar="SIZE", help="Remove the oldest rows of a larger table, such as `50GiB`.")
@click.option(
    "--retain-log",
    metavar="DURATION",
    help="Keep the log for longer than `retain_log` of the hub, such as `90d`, where it has records of the stream.",
)
@click.option(
    "--sort",
    metavar="COLUMNS",
    help="Sort rows within files of the table of all rows by these columns before others, such as `machine,order_id`. "
    "`none` ends it.",
)
@click.option(
    "--formats",
    metavar="FORMATS",
    help="Formats in which engines find the tables: `delta`, or `delta,iceberg`. Without it, `tables.formats` counts.",
)
@decision_options
def set_table(
    config_file: str,
    stream: str,
    *,
    latest: str | None,
    every: str | None,
    feed: bool,
    instead: bool,
    retain: str | None,
    retain_size: str | None,
    retain_log: str | None,
    sort: str | None,
    formats: str | None,
    reason: str,
    by: str | None,
) -> None:
    """Declare tables of STREAM at the hubs of CONFIG. Options that are not given stay as declared.

    Retention removes whole files from the table of all rows, from the oldest on. The audit reports their rows as
    removed, not as missing. The log has a retention of its own (`retain_log`), and --retain-log makes it longer. A
    chunk has records of many streams, and is kept for the longest of their terms.

    The order of --sort holds for new files, and for old ones when they are joined. A filter on its first column reads
    a small part of the table. Without it, rows are sorted by topic levels, edge node, key and time.

    A latest table is a Delta table in the folder `latest/TENANT/STREAM` of the store, beside the table of all rows. A
    record without a payload deletes its key's row.

    With --instead it is the only table of the stream, for good. An existing table of all rows is kept, until its folder
    is moved away.

    \b
    weft hub table set hub.yaml acme/machines --latest machine --every 30s
    weft hub table set hub.yaml acme/telemetry --retain 365d --sort order_id
    """
    key = key_of(stream)
    if every is not None and latest is None:
        raise Refused("--every is the interval of a latest table: name its key, too (--latest)")
    if feed and latest is None:
        raise Refused("--feed is for a latest table: name its key, too (--latest)")
    if instead and latest is None:
        raise Refused("--instead is for a latest table: name its key, too (--latest)")
    document = _latest(latest, every, feed=feed, instead=instead) if latest is not None else None
    retain_s = _parsed("--retain", retain, parse_duration, RETAIN_S_MIN, "an hour")
    retain_bytes = _parsed("--retain-size", retain_size, parse_size, RETAIN_BYTES_MIN, "1MiB")
    log_s = _parsed("--retain-log", retain_log, parse_duration, RETAIN_S_MIN, "an hour")
    columns = None if sort is None else _columns(sort)
    named = None if formats is None else _formats(formats)
    if all(each is None for each in (document, retain_s, retain_bytes, log_s, columns, named)):
        raise Refused("name what to declare: --latest, --retain, --retain-size, --retain-log, --sort or --formats")
    if log_s is not None:
        _check_term(config_file, log_s)
    try:
        decision = declare_set_table(
            key, latest=document, retain_s=retain_s, retain_bytes=retain_bytes, log_s=log_s, sort=columns, formats=named
        )
    except CannotDeclare as error:
        raise Refused(str(error)) from None
    declare(config_file, decision, by, reason)
    click.echo(f"declared tables of {'/'.join(key)}")


@click.command("remove")
@config_argument
@click.argument("stream", metavar="[TENANT/]STREAM")
@decision_options
def remove_table(config_file: str, stream: str, *, reason: str, by: str | None) -> None:
    """Withdraw what is declared of the tables of STREAM at the hubs of CONFIG.

    A latest table is no longer written, and its folder stays: delete it, or declare the table again and it continues. A
    table that is the only one stays declared once the log has lost chunks: the table of all rows could not be made.
    """
    from weft.cloud_hub.tables.latest import first_kept

    key = key_of(stream)
    known = DeclaredTables()
    known.refresh(read_facts(config_file))
    if known.is_instead(key) and (kept := on_store(config_file, first_kept, key)) is not None:
        raise Refused(
            f"{'/'.join(key)} has only a latest table. A table of all rows can no longer be made: the log of shard "
            f"{kept.shard} begins with chunk {kept.n}. To end the stream, use `weft hub stream delete`"
        )
    declare(config_file, declare_remove_table(key), by, reason)
    click.echo(f"withdrew the tables of {'/'.join(key)}")


@click.command("list")
@config_argument
@json_option
def list_tables(config_file: str, *, as_json: bool) -> None:
    """List what the cluster log of CONFIG declares of tables.

    `weft hub status` has the progress of latest tables (`latest_tables` of `GET /v1/status`).
    """
    state, known = read_facts(config_file), DeclaredTables()
    known.refresh(state)
    found: list[dict[str, Any]] = []
    for name, fact in sorted(state.facts(TABLE).items()):
        document = known.documents.get(parse_stream_name(name))
        latest = document.latest if document is not None else None
        found.append(
            {
                "stream": name,
                "latest": list(latest.key) if latest is not None else None,
                "every": format_duration(latest.every_s) if latest is not None else None,
                "feed": latest.feed if latest is not None else None,
                "instead": latest.instead if latest is not None else None,
                "retain": format_duration(document.retain_s) if document and document.retain_s else None,
                "retain_size": format_size(document.retain_bytes) if document and document.retain_bytes else None,
                "retain_log": format_duration(document.log_s) if document and document.log_s else None,
                "sort": list(document.sort) if document and document.sort else None,
                "formats": list(document.formats) if document and document.formats else None,
                "version": fact.version,
                "changed": moment(fact.at),
                "by": fact.by,
                "reason": fact.reason,
                "unusable": known.unusable.get(name),
            }
        )
    if as_json:
        print_json(found)
        return
    print_table(
        ("stream", "latest by", "every", "retain", "log", "sorted by", "formats", "changed", "by", "reason"),
        [
            (
                each["stream"],
                _shown(each),
                each["every"] or "",
                " and ".join(filter(None, (each["retain"], each["retain_size"]))),
                each["retain_log"] or "",
                ", ".join(each["sort"] or ()),
                ", ".join(each["formats"] or ()),
                each["changed"],
                each["by"],
                each["reason"],
            )
            for each in found
        ],
    )


def _check_term(config_file: str, log_s: int) -> None:
    """Refuse a term of the log that changes nothing."""
    whole = load_hub(config_file).retain_log_s
    if whole is None:
        raise Refused(
            "--retain-log: the hub keeps its log without a limit. Set `retain_log` first, to the shortest term"
        )
    if log_s <= whole:
        raise Refused(
            f"--retain-log: the hub keeps its log for {format_duration(whole)} (`retain_log`), and a term of a stream "
            "can only be longer: chunks have records of many streams. Make `retain_log` shorter, and declare longer "
            "terms for the others"
        )


def _shown(found: dict[str, Any]) -> str:
    if found["unusable"] is not None:
        return f"this release cannot read it: {found['unusable']}"
    return ", ".join(found["latest"] or ()) + (", and no other table" if found["instead"] else "")


def _parsed(option: str, text: str | None, parse: Callable[[str], float], least: int, least_text: str) -> int | None:
    if text is None:
        return None
    try:
        found = int(parse(text))
    except ValueError as error:
        raise Refused(f"{option}: {error}") from None
    if found < least:
        raise Refused(f"{option}: expected at least {least_text}, got {text}")
    if found >= 1 << 53:
        raise Refused(f"{option}: {text} is more than a declaration has room for")
    return found


def _columns(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(part.strip() for part in text.split(","))


def _formats(text: str) -> tuple[Literal["delta", "iceberg"], ...]:
    found = [part.strip() for part in text.split(",")]
    if "delta" not in found or not {"delta", "iceberg"}.issuperset(found):
        raise Refused(f"--formats: expected `delta` or `delta,iceberg`, got {text}: tables are always found as Delta")
    return ("delta", "iceberg") if "iceberg" in found else ("delta",)


def _latest(key: str, every: str | None, *, feed: bool, instead: bool) -> Any:
    parts = tuple(part.strip() for part in key.split(","))
    if (wrong := wrong_part(parts)) is not None:
        raise Refused(f"--latest: {wrong}")
    if every is None:
        return LatestDocument(parts, feed=feed, instead=instead)
    try:
        seconds = parse_duration(every)
    except ValueError as error:
        raise Refused(f"--every: {error}") from None
    if not 1 <= seconds <= 86_400:
        raise Refused(f"--every: {every} is not between 1s and 24h")
    return LatestDocument(parts, seconds, feed, instead)


# ``weft hub quality``: quality rules of streams in the cluster log, which the hub checks while it makes tables.

TEXT_BYTES_MAX = 1 << 20
stream_argument = click.argument("stream", metavar="[TENANT/]STREAM")


@click.command("set")
@config_argument
@stream_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@decision_options
def set_quality(config_file: str, stream: str, file: str, *, reason: str, by: str | None) -> None:
    """Declare the rules in FILE for STREAM at the hubs of CONFIG, instead of those before.

    FILE is YAML or JSON with `rules`: names, each with one check (`range`, `not_null`, `fits`, `unique`, `fresh`) and
    what is tolerated. A check that stays as it was continues counting.

    \b
    weft hub quality set hub.yaml acme/telemetry quality.yaml --reason "agreed with the plant"
    """
    key, rules = key_of(stream), _read_rules(file)
    try:
        decision = declare_set_quality(key, rules)
    except CannotDeclare as error:
        raise Refused(str(error)) from None
    state = declare(config_file, decision, by, reason)
    schema = Schemas.of_state(state).of(key)
    try:
        levels = on_store(config_file, _levels, key)
    except CodecError as error:
        raise Failed(f"the rules are declared; whether they fit the stream is unknown: {error}") from None
    for doubt in doubts(rules, None if schema is None else schema.schema, levels):
        click.echo(f"warning: {doubt}", err=True)
    click.echo(f"stream {'/'.join(key)} has {counted(len(rules.rules), 'rule')}")


async def _levels(store: ObjectStore, key: StreamKey) -> set[str]:
    return await topic_levels(store, await open_cluster(store, None), key)


@click.command("remove")
@config_argument
@stream_argument
@decision_options
def remove_quality(config_file: str, stream: str, *, reason: str, by: str | None) -> None:
    """Withdraw the rules of STREAM at the hubs of CONFIG. What was counted stays in its table."""
    key = key_of(stream)
    declare(config_file, declare_remove_quality(key), by, reason)
    click.echo(f"withdrew the quality rules of stream {'/'.join(key)}")


@click.command("get")
@config_argument
@stream_argument
@json_option
def get_quality(config_file: str, stream: str, *, as_json: bool) -> None:
    """Print the rules of STREAM in YAML, as `set` reads them."""
    key = key_of(stream)
    name, state = "/".join(key), read_facts(config_file)
    known, unusable = _known_rules(state)
    found = known.get(name)
    if found is None:
        if name in unusable:
            raise Failed(f"this release cannot read the rules of stream {name}: {unusable[name]}")
        raise Failed(
            f"stream {name} has no quality rules; streams with some: {', '.join(sorted(known)[:20]) or 'none'}"
        )
    if as_json:
        print_json({"version": found.version, "quality": found.rules})
        return
    click.echo(f"# stream {name}, version {found.version}\n{rules_text(found.rules)}", nl=False)


@click.command("list")
@config_argument
@json_option
def list_quality(config_file: str, *, as_json: bool) -> None:
    """List the streams with quality rules in the cluster log of CONFIG.

    `quality` of `GET /v1/status` has what was counted, and `weft hub status` names alarms.
    """
    state = read_facts(config_file)
    known, unusable = _known_rules(state)
    rows: list[dict[str, Any]] = [
        {
            "stream": name,
            "rules": [*known[name].rules.rules] if name in known else None,
            "version": fact.version,
            "changed": moment(fact.at),
            "by": fact.by,
            "reason": fact.reason,
            "unusable": unusable.get(name),
        }
        for name, fact in sorted(state.facts(QUALITY).items())
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("stream", "version", "rules", "changed", "by", "reason"),
        [
            (
                each["stream"],
                each["version"],
                f"this release cannot read them: {each['unusable']}" if each["unusable"] else ", ".join(each["rules"]),
                each["changed"],
                each["by"],
                each["reason"],
            )
            for each in rows
        ],
    )


def _known_rules(state: ClusterState) -> tuple[dict[str, StreamQuality], dict[str, str]]:
    """Return the rules by stream, and those that cannot be read, each with the reason."""
    declared = DeclaredQuality()
    declared.refresh(state)
    return {"/".join(key): found for key, found in declared.streams.items()}, declared.unusable


def _read_rules(file: str) -> QualityRules:
    try:
        with open(file, "rb") as opened:
            data = opened.read(TEXT_BYTES_MAX + 1)
        if len(data) > TEXT_BYTES_MAX:
            raise Refused(f"{file} has more than {TEXT_BYTES_MAX >> 20} MiB: rules have some kilobytes")
        return parse_rules(data.decode(), file)
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error}") from None
    except ValueError as error:
        raise Refused(f"{file}: {error}") from None
    except ConfigError as error:
        raise Refused(str(error)) from None


# ``weft hub schema``: schemas of streams in the cluster log, by which tables get typed columns.

SAMPLE_BYTES = 8 << 20
"""Bytes of a file that are looked at together."""
RECORDS_MAX = 10_000_000
LEFT_OUT_SHOWN = 20
file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False))


def _place(stream: str) -> tuple[str | None, str]:
    """Return the tenant, None for that of the token or `default`, and the name of a stream."""
    tenant, name = key_of(stream)
    return (tenant if "/" in stream else None), name


message_option = click.option(
    "--message", metavar="NAME", help="Message of Protobuf with its package; FILE is a descriptor set then."
)
compatibility_option = click.option(
    "--compatibility",
    type=click.Choice(["none", "backward", "forward", "full"]),
    help="Rule between a version and the one before. `backward`: payloads of devices that stay as they are can be "
    "read. `forward`: readers that stay as they are can read new payloads. `full`: both. Default: the rule in "
    "force; at first `none`.",
)
records_option = click.option(
    "--records",
    type=click.IntRange(1, RECORDS_MAX),
    default=100_000,
    show_default=True,
    help="Number of records to look at.",
)
version_option = click.option("--version", type=click.IntRange(min=1), help="Version; the newest by default.")


@click.command("set")
@hub_argument
@stream_argument
@file_argument
@message_option
@compatibility_option
@access_options("a token that has the grant declare, for a URL or a login")
@decision_options
def set_schema(
    hub: str,
    stream: str,
    file: str,
    *,
    message: str | None,
    compatibility: Compatibility | None,
    token_file: str | None,
    reason: str,
    by: str | None,
) -> None:
    """Declare the schema in FILE for STREAM at HUB: a configuration on this machine, a URL or the name of a login.

    FILE is YAML or JSON with `format` (json, cbor or msgpack) and `fields`. A field has a type. It may have `from`, its
    path in the payload, and `required`, `unit`, `description` and `personal`. Or FILE is a JSON Schema, a schema of
    Avro, or a descriptor set of Protobuf (`protoc --include_imports --descriptor_set_out`): all single values become
    fields.

    \b
    weft hub schema set hub.yaml acme/telemetry telemetry.yaml --reason "first columns"
    weft hub schema set hub.yaml acme/telemetry telemetry.yaml --compatibility backward
    """
    (tenant, name), schema = _place(stream), _read_schema(file, message)
    there = administration_of(hub, token_file, by)
    found = there.set_schema(name, schema=schema, compatibility=compatibility, tenant=tenant, reason=reason)
    fields = counted(len(found.schema.fields), "field")
    click.echo(f"stream {found.tenant}/{name} has version {found.version}: {fields}")


@click.command("remove")
@hub_argument
@stream_argument
@access_options("a token that has the grant declare, for a URL or a login")
@decision_options
def remove_schema(hub: str, stream: str, *, token_file: str | None, reason: str, by: str | None) -> None:
    """Withdraw the schema of STREAM. Its table keeps its columns; they are null in later rows."""
    tenant, name = _place(stream)
    gone = administration_of(hub, token_file, by).remove_schema(name, tenant=tenant, reason=reason)
    click.echo(f"withdrew the schema of stream {gone.tenant}/{name}")


@click.command("get")
@hub_argument
@stream_argument
@version_option
@access_options("a token that has the grant read, for a URL or a login")
@json_option
def get_schema(hub: str, stream: str, *, version: int | None, token_file: str | None, as_json: bool) -> None:
    """Print the schema of STREAM in YAML, as `set` reads it. Rows say their version in the column `_schema`."""
    tenant, name = _place(stream)
    found = administration_of(hub, token_file).schema(name, tenant=tenant, version=version)
    if as_json:
        print_json(found)
        return
    before = f", after version {found.before}" if found.before else ""
    rule = "" if found.compatibility == "none" else f", compatibility {found.compatibility}"
    click.echo(
        f"# stream {found.tenant}/{name}, version {found.version}{before}{rule}\n{yaml_text(found.schema)}", nl=False
    )


@click.command()
@hub_argument
@stream_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@message_option
@version_option
@access_options("a token that has the grant read, for a URL or a login")
@json_option
def diff(
    hub: str,
    stream: str,
    file: str | None,
    *,
    message: str | None,
    version: int | None,
    token_file: str | None,
    as_json: bool,
) -> None:
    """Compare FILE with the schema of STREAM, and list the columns that its table would get.

    A stream without a schema gets all of FILE. Without FILE, compare a version with the one before it. Nothing is
    changed.
    """
    before, after = _compared(administration_of(hub, token_file), stream, file, message, version)
    if not before.fields and not as_json:
        fields = counted(len(after.fields), "field")
        click.echo(f"stream {'/'.join(key_of(stream))} has no schema; `set` would declare one with {fields}:")
    changes = differences(before, after)
    if as_json:
        print_json([_fact(each) for each in changes])
        return
    if before.format != after.format:
        click.echo(f"~ format: {before.format} -> {after.format}")
    for each in changes:
        click.echo(f"{each}{' (another column)' if each.before and each.makes_column else ''}")
    if not changes and before.format == after.format:
        click.echo("no difference")


def _compared(
    there: RunningHub | StoreHub, stream: str, file: str | None, message: str | None, version: int | None
) -> tuple[PayloadSchema, PayloadSchema]:
    """Return two schemas of a stream, the earlier one first. Where a stream has none, that one has no fields."""
    from weft.config.payload_schema.model import PayloadSchema

    tenant, name = _place(stream)
    try:
        known = there.schema(name, tenant=tenant, version=version)
    except NotThere:
        if file is None or version is not None:
            raise
        after = _read_schema(file, message)
        return PayloadSchema(format=after.format, fields={}), after
    if file is not None:
        return known.schema, _read_schema(file, message)
    if not known.before:
        raise Failed(
            f"version {known.version} of stream {known.tenant}/{name} is the first; name a file to compare with"
        )
    return there.schema(name, tenant=tenant, version=known.before).schema, known.schema


@click.command()
@config_argument
@stream_argument
@click.option("--file", type=click.Path(exists=True, dir_okay=False), help="Read JSON from this file, one on a line.")
@records_option
@click.option(
    "--format",
    "payload_format",
    type=click.Choice(["json", "msgpack", "cbor"]),
    default="json",
    show_default=True,
    help="Format of the payloads.",
)
def infer(config_file: str, stream: str, *, file: str | None, records: int, payload_format: SchemaFormat) -> None:
    """Draft a schema for STREAM from its newest records, or from a file.

    The draft goes to standard output, with what was found beside each field. Edit it, and declare it with `set`.

    \b
    weft hub schema infer hub.yaml acme/telemetry > telemetry.yaml
    """
    sample = PayloadSample()
    if file is not None:
        _sample_file(sample, file, records)
        payload_format = "json"
    else:
        _sample_stream(sample, config_file, key_of(stream), records, payload_format)
    if not sample.has_fields:
        raise Failed(
            f"none of {counted(sample.records, 'record')} is an object in {payload_format}; {sample.unreadable} "
            "cannot be read as that. Choose another --format"
        )
    click.echo(sample.draft(payload_format), nl=False)


def _sample_file(sample: PayloadSample, file: str, records: int) -> None:
    from weft.storage.payloads.formats import whole_values

    decode = whole_values("json")
    with open(file, "rb") as opened:
        while lines := opened.readlines(SAMPLE_BYTES)[: records - sample.records]:
            if len(lines[-1]) > SAMPLE_BYTES:
                raise Refused(f"{file} has a line of more than {SAMPLE_BYTES >> 20} MiB: write one record on each line")
            sample.take(*decode([line for each in lines if (line := each.strip())]))


def _sample_stream(
    sample: PayloadSample, config_file: str, key: StreamKey, records: int, payload_format: SchemaFormat
) -> None:
    from weft.storage.payloads.formats import whole_values

    decode = whole_values(payload_format)
    try:
        on_store(config_file, _each_part, key, records, lambda payloads: sample.take(*decode(payloads)))
    except (NoRecords, CodecError) as error:
        raise Failed(str(error)) from None


async def _each_part(store: ObjectStore, key: StreamKey, records: int, take: Callable[[list[bytes]], None]) -> None:
    """Give the newest payloads of a stream, some thousands at a time. Raises as ``newest_payloads``."""
    async for payloads in newest_payloads(store, await open_cluster(store, None), key, records):
        take(payloads)


@click.command()
@config_argument
@stream_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@message_option
@compatibility_option
@records_option
@json_option
def check(
    config_file: str,
    stream: str,
    file: str | None,
    *,
    message: str | None,
    compatibility: Compatibility | None,
    records: int,
    as_json: bool,
) -> int:
    """Check FILE, or the schema of STREAM, against the version that is declared and the newest records.

    The command reports whether `set` would accept FILE under the rule of compatibility, and which fields do not fit or
    are in no record. Fields of the records that the schema does not name follow as a draft. Nothing is changed. The
    exit status is 1 if the rule is not kept. Records are those of the log.
    """
    from weft.storage.payloads.decoder import SampleOfSchema

    key, known = key_of(stream), None
    try:
        known = StoreHub(config_file, None).schema(key[1], tenant=key[0])
    except NotThere:
        if file is None:
            raise
    schema = known.schema if file is None and known is not None else _read_schema(file or "", message)
    rule = compatibility or (known.compatibility if known else "none")
    broken = incompatible(known.schema, schema, rule) if known else []
    sample, no_records = SampleOfSchema(schema), None
    try:
        on_store(config_file, _each_part, key, records, sample.take)
    except NoRecords as error:
        no_records = str(error)
    except CodecError as error:
        raise Failed(str(error)) from None
    facts = {
        "compatibility": rule,
        "version": known.version if known else None,
        "incompatible": broken,
        "records": sample.records,
        "misfits": sample.misfits,
        "fields": [each._asdict() for each in sample.fields()],
        "not_named": sample.unnamed(),
    }
    if as_json:
        print_json(facts)
    else:
        _print_check(facts, sample, no_records)
    return 1 if broken else 0


def _print_check(facts: dict[str, Any], sample: SampleOfSchema, no_records: str | None) -> None:
    for each in facts["incompatible"]:
        click.echo(f"not compatible with version {facts['version']}: {each}")
    if facts["version"] and not facts["incompatible"] and facts["compatibility"] != "none":
        click.echo(f"compatible ({facts['compatibility']}) with version {facts['version']}")
    if no_records is not None:
        click.echo(no_records, err=True)
        return
    click.echo(f"{sample.misfits} of {counted(sample.records, 'record')} do not fit")
    for found in sample.fields():
        if found.misfits:
            click.echo(harmless(f"  {found.name}: {found.misfits} do not fit, most: {found.reason}"))
        elif not found.values:
            click.echo(f"  {found.name}: in no record")
    if lines := sample.unnamed():
        click.echo(f"the schema does not name:\n{harmless(''.join(lines))}", nl=False)


@click.command("list")
@any_hub_argument
@access_options("a token that has the grant status, for a URL or a login")
@json_option
def list_schemas(hub: str | None, *, token_file: str | None, as_json: bool) -> None:
    """List the streams with a schema in the cluster log of HUB. A token needs the grant `status`."""
    found = whole("schemas", administration_of(hub, token_file).schemas).schemas
    if as_json:
        print_json(found)
        return
    print_table(
        ("stream", "version", "format", "fields", "compatibility", "personal", "changed", "by", "reason"),
        [
            (
                f"{each.tenant}/{each.stream}",
                each.version,
                each.format or f"this release cannot read it: {each.unusable}",
                each.fields or "",
                each.compatibility or "",
                ", ".join(each.personal or ()),
                each.changed,
                each.by,
                each.reason,
            )
            for each in found
        ],
    )


def _fact(change: FieldChange) -> dict[str, Any]:
    return {"field": change.name, "before": change.before, "after": change.after, "new_column": change.makes_column}


def _read_schema(file: str, message: str | None = None) -> PayloadSchema:
    try:
        found = read_schema_file(file, message)
        if found.left_out:
            shown = ", ".join(found.left_out[:LEFT_OUT_SHOWN])
            click.echo(f"no column for {counted(len(found.left_out), 'place')}: {shown}", err=True)
        return parse_schema(found.text, file)
    except ValueError as error:
        raise Refused(f"{file}: {error}") from None
    except ConfigError as error:
        raise Refused(str(error)) from None
