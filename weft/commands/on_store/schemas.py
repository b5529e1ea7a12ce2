"""``weft hub schema``: schemas of streams in the cluster log, by which tables get typed columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from weft.commands.common import config_argument, json_option
from weft.commands.on_store.declaring import declare, read_entry, read_facts
from weft.commands.on_store.opening import by_option, on_store, reason_option
from weft.commands.on_store.stream import key_of
from weft.output import Failed, Refused, counted, harmless, print_json, print_table
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.config.payload_schema.compatibility import Compatibility
    from weft.config.payload_schema.inferring import PayloadSample
    from weft.config.payload_schema.model import PayloadSchema, SchemaFormat
    from weft.config.payload_schema.text import FieldChange
    from weft.protocols.shard.shard_state import StreamKey
    from weft.storage.payloads.sampled import SampleOfSchema
    from weft.storage.table.schemas import StreamSchema

SAMPLE_BYTES = 8 << 20
"""Bytes of a file that are looked at together."""
RECORDS_MAX = 10_000_000
LEFT_OUT_SHOWN = 20
stream_argument = click.argument("stream", metavar="[TENANT/]STREAM")
file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False))
message_option = click.option(
    "--message", metavar="NAME", help="Message of Protobuf with its package; FILE is a descriptor set then."
)
compatibility_option = click.option(
    "--compatibility", type=click.Choice(["none", "backward", "forward", "full"]),
    help="Rule between a version and the one before. `backward`: payloads of devices that stay as they are can be "
    "read. `forward`: readers that stay as they are can read new payloads. `full`: both. The rule that holds, by "
    "default; at first none.",
)  # fmt: skip
records_option = click.option(
    "--records", type=click.IntRange(1, RECORDS_MAX), default=100_000, show_default=True,
    help="Number of records to look at.",
)  # fmt: skip
version_option = click.option("--version", type=click.IntRange(min=1), help="Version; the newest by default.")


@click.group("schema")
def hub_schema_group() -> None:
    """Manage the schemas of streams in a hub's store, whether nodes run or not.

    A schema names fields of a stream's payloads. The stream's table gets a typed column for each, beside the payload
    itself; what does not fit stands in the column `_misfit` with the reason. Running hubs know a change two seconds
    later. Columns are only added: a field of another type or unit gets another column, and old rows stay as they are.
    """


@hub_schema_group.command("set")
@config_argument
@stream_argument
@file_argument
@message_option
@compatibility_option
@reason_option
@by_option
def set_schema(
    config_file: str,
    stream: str,
    file: str,
    *,
    message: str | None,
    compatibility: Compatibility | None,
    reason: str,
    by: str | None,
) -> None:
    """Declare the schema in FILE for STREAM at the hubs of CONFIG.

    FILE is YAML or JSON with `format` (json, cbor or msgpack) and `fields`. A field has a type. It may have `from`, its
    path in the payload, and `required`, `unit`, `description` and `personal`. Or FILE is a JSON Schema, a schema of
    Avro, or a descriptor set of Protobuf (`protoc --include_imports --descriptor_set_out`): all single values become
    fields.

    \b
    weft hub schema set hub.yaml acme/telemetry telemetry.yaml --reason "first columns"
    weft hub schema set hub.yaml acme/telemetry telemetry.yaml --compatibility backward
    """
    from weft.cloud_hub.declared import schemas
    from weft.cloud_hub.declared.changes import CannotDeclare

    key, schema = key_of(stream), _read(file, message)
    try:
        decision = schemas.set_schema(key, schema, compatibility)
    except CannotDeclare as error:
        raise Refused(str(error)) from None
    state = declare(config_file, lambda _: decision, by, reason)
    found = _known(state, key)
    click.echo(f"stream {'/'.join(key)} has version {found.version}: {counted(len(found.schema.fields), 'field')}")


@hub_schema_group.command("remove")
@config_argument
@stream_argument
@reason_option
@by_option
def remove_schema(config_file: str, stream: str, *, reason: str, by: str | None) -> None:
    """Withdraw the schema of STREAM. Its table keeps its columns; they are null in later rows."""
    from weft.cloud_hub.declared import schemas

    key = key_of(stream)
    declare(config_file, lambda _: schemas.remove_schema(key), by, reason)
    click.echo(f"withdrew the schema of stream {'/'.join(key)}")


@hub_schema_group.command("get")
@config_argument
@stream_argument
@version_option
@json_option
def get_schema(config_file: str, stream: str, *, version: int | None, as_json: bool) -> None:
    """Print the schema of STREAM in YAML, as `set` reads it. Rows say their version in the column `_schema`."""
    from weft.config.payload_schema.text import yaml_text

    key = key_of(stream)
    found = _version(config_file, key, version)
    if as_json:
        print_json({
            "version": found.version,
            "before": found.before or None,
            "compatibility": found.compatibility,
            "schema": found.schema,
        })  # fmt: skip
        return
    before = f", after version {found.before}" if found.before else ""
    rule = "" if found.compatibility == "none" else f", compatibility {found.compatibility}"
    click.echo(f"# stream {'/'.join(key)}, version {found.version}{before}{rule}\n{yaml_text(found.schema)}", nl=False)


@hub_schema_group.command()
@config_argument
@stream_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@message_option
@version_option
@json_option
def diff(
    config_file: str, stream: str, file: str | None, *, message: str | None, version: int | None, as_json: bool
) -> None:
    """Compare FILE with the schema of STREAM, and say which columns its table would get.

    Without FILE, compare a version with the one before it. Nothing is changed.
    """
    from weft.config.payload_schema.text import differences

    key = key_of(stream)
    known = _version(config_file, key, version)
    if file is not None:
        before, after = known.schema, _read(file, message)
    elif known.before:
        before, after = _version(config_file, key, known.before).schema, known.schema
    else:
        raise Failed(f"version {known.version} of stream {'/'.join(key)} is the first; name a file to compare with")
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


@hub_schema_group.command()
@config_argument
@stream_argument
@click.option("--file", type=click.Path(exists=True, dir_okay=False), help="Read JSON from this file, one on a line.")
@records_option
@click.option(
    "--format", "payload_format", type=click.Choice(["json", "msgpack", "cbor"]), default="json", show_default=True,
    help="Format of the payloads.",
)  # fmt: skip
def infer(config_file: str, stream: str, *, file: str | None, records: int, payload_format: SchemaFormat) -> None:
    """Draft a schema for STREAM from its newest records, or from a file.

    The draft goes to standard output, with what was found beside each field. Edit it, and declare it with `set`.

    \b
    weft hub schema infer hub.yaml acme/telemetry > telemetry.yaml
    """
    from weft.config.payload_schema.inferring import PayloadSample

    sample = PayloadSample()
    if file is not None:
        _sample_file(sample, file, records)
        payload_format = "json"
    else:
        _sample_stream(sample, config_file, key_of(stream), records, payload_format)
    if not sample.has_fields:
        raise Failed(
            f"none of {counted(sample.records, 'record')} is an object in {payload_format}; {sample.unreadable} cannot "
            "be read as that. Say another --format"
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
    from weft.cloud_hub.declared.sampling import NoRecords
    from weft.protocols.errors import CodecError
    from weft.storage.payloads.formats import whole_values

    decode = whole_values(payload_format)
    try:
        _each_part(config_file, key, records, lambda payloads: sample.take(*decode(payloads)))
    except (NoRecords, CodecError) as error:
        raise Failed(str(error)) from None


def _each_part(config_file: str, key: StreamKey, records: int, take: Callable[[list[bytes]], None]) -> None:
    """Give the newest payloads of a stream, some thousands at a time. Raises as ``newest_payloads``."""
    from weft.cloud_hub.declared.sampling import newest_payloads
    from weft.storage.cluster import open_cluster

    async def work(store: ObjectStore) -> None:
        cluster = await open_cluster(store, None)
        async for payloads in newest_payloads(store, cluster, key, records):
            take(payloads)

    on_store(config_file, work)


@hub_schema_group.command()
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

    The command says whether `set` would take FILE by the rule of compatibility, and which fields do not fit or are in
    no record. Fields of the records that the schema does not name follow as a draft. Nothing is changed. The exit
    status is 1 if the rule is not kept. Records are those of the log.
    """
    from weft.cloud_hub.declared.sampling import NoRecords
    from weft.config.payload_schema.compatibility import incompatible
    from weft.protocols.errors import CodecError
    from weft.storage.payloads.sampled import SampleOfSchema
    from weft.storage.table.schemas import SCHEMA

    key, state = key_of(stream), read_facts(config_file)
    known = _known(state, key) if file is None or "/".join(key) in state.facts(SCHEMA) else None
    schema = known.schema if file is None and known is not None else _read(file or "", message)
    rule = compatibility or (known.compatibility if known else "none")
    broken = incompatible(known.schema, schema, rule) if known else []
    sample, no_records = SampleOfSchema(schema), None
    try:
        _each_part(config_file, key, records, sample.take)
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


@hub_schema_group.command("list")
@config_argument
@json_option
def list_schemas(config_file: str, *, as_json: bool) -> None:
    """List the streams with a schema in the cluster log of CONFIG."""
    from weft.cloud_hub.api.views import moment
    from weft.storage.table.schemas import SCHEMA, Schemas

    state = read_facts(config_file)
    known = Schemas.of_state(state)
    found: list[dict[str, Any]] = []
    for name, fact in sorted(state.facts(SCHEMA).items()):
        key = key_of(name)
        schema = known.of(key)
        found.append({
            "tenant": key[0],
            "stream": key[1],
            "version": fact.version,
            "format": schema.schema.format if schema else None,
            "fields": len(schema.schema.fields) if schema else None,
            "compatibility": schema.compatibility if schema else None,
            "personal": [name for name, each in schema.schema.fields.items() if each.personal] if schema else None,
            "changed": moment(fact.at),
            "by": fact.by,
            "reason": fact.reason,
            "unusable": known.unusable.get(name),
        })  # fmt: skip
    if as_json:
        print_json(found)
        return
    print_table(
        ("stream", "version", "format", "fields", "compatibility", "personal", "changed", "by", "reason"),
        [
            (
                f"{each['tenant']}/{each['stream']}", each["version"],
                each["format"] or f"this release cannot read it: {each['unusable']}", each["fields"] or "",
                each["compatibility"] or "", ", ".join(each["personal"] or ()),
                each["changed"], each["by"], each["reason"],
            )
            for each in found
        ],
    )  # fmt: skip


def _fact(change: FieldChange) -> dict[str, Any]:
    return {
        "field": change.name,
        "before": change.before,
        "after": change.after,
        "new_column": change.makes_column,
    }


def _read(file: str, message: str | None = None) -> PayloadSchema:
    from weft.config.errors import ConfigError
    from weft.config.payload_schema.files import read_schema_file
    from weft.config.pipelines.schema_text import parse_schema

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


def _known(state: Any, key: StreamKey) -> StreamSchema:
    from weft.storage.table.schemas import SCHEMA, Schemas

    schemas, name = Schemas.of_state(state), "/".join(key)
    found = schemas.of(key)
    if found is None and name in schemas.unusable:
        raise Failed(f"this release cannot read the schema of stream {name}: {schemas.unusable[name]}")
    if found is None:
        names = ", ".join(sorted(state.facts(SCHEMA))[:20]) or "none"
        raise Failed(f"stream {name} has no schema; streams with one: {names}")
    return found


def _version(config_file: str, key: StreamKey, version: int | None) -> StreamSchema:
    """Return a version of a stream's schema, also one that was withdrawn or replaced."""
    from weft.storage.table.schemas import SCHEMA, UnreadableSchema, decode

    if version is None:
        return _known(read_facts(config_file), key)
    name = "/".join(key)
    entry = read_entry(config_file, version)
    if entry is None or (entry.kind, entry.name) != (SCHEMA, name) or entry.document is None:
        raise Failed(f"entry {version} of the cluster log is no schema of stream {name}")
    try:
        return decode(entry.document, version)
    except UnreadableSchema as error:
        raise Failed(f"this release cannot read version {version}: {error}") from None
