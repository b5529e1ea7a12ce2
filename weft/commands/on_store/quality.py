"""``weft hub quality``: quality rules of streams in the cluster log, which the hub checks while it makes tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.commands.common import config_argument, json_option
from weft.commands.on_store.declaring import declare, read_facts
from weft.commands.on_store.opening import by_option, reason_option
from weft.commands.on_store.stream import key_of
from weft.output import Failed, Refused, counted, print_json, print_table

if TYPE_CHECKING:
    from weft.config.payload_schema.quality import QualityRules
    from weft.storage.cluster_log.state import ClusterState
    from weft.storage.table.quality.declared import StreamQuality

TEXT_BYTES_MAX = 1 << 20
stream_argument = click.argument("stream", metavar="[TENANT/]STREAM")


@click.group("quality")
def hub_quality_group() -> None:
    """Manage the quality rules of streams in a hub's store, whether nodes run or not.

    A rule is one check. Numbers are within a range, a field has values, payloads fit the schema, values do not repeat,
    or the table is fresh. The hub counts the rows that fail, and raises an alarm when they are more than the rule
    tolerates. Nothing is dropped or held back: a row that fails is in the table as before.

    Running hubs know a change two seconds later. Edges that a stream needs are another matter: `weft hub stream
    expect`.
    """


@hub_quality_group.command("set")
@config_argument
@stream_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@reason_option
@by_option
def set_quality(config_file: str, stream: str, file: str, *, reason: str, by: str | None) -> None:
    """Declare the rules in FILE for STREAM at the hubs of CONFIG, instead of those before.

    FILE is YAML or JSON with `rules`: names, each with one check (`range`, `not_null`, `fits`, `unique`, `fresh`) and
    what is tolerated. A check that stays as it was goes on counting.

    \b
    weft hub quality set hub.yaml acme/telemetry quality.yaml --reason "agreed with the plant"
    """
    from weft.cloud_hub.declared import quality
    from weft.cloud_hub.declared.changes import CannotDeclare
    from weft.storage.table.schemas import Schemas

    key, rules = key_of(stream), _read(file)
    try:
        decision = quality.set_quality(key, rules)
    except CannotDeclare as error:
        raise Refused(str(error)) from None
    state = declare(config_file, lambda _: decision, by, reason)
    schema = Schemas.of_state(state).of(key)
    for doubt in quality.doubts(rules, None if schema is None else schema.schema):
        click.echo(f"warning: {doubt}", err=True)
    click.echo(f"stream {'/'.join(key)} has {counted(len(rules.rules), 'rule')}")


@hub_quality_group.command("remove")
@config_argument
@stream_argument
@reason_option
@by_option
def remove_quality(config_file: str, stream: str, *, reason: str, by: str | None) -> None:
    """Withdraw the rules of STREAM at the hubs of CONFIG. What was counted stays in its table."""
    from weft.cloud_hub.declared import quality

    key = key_of(stream)
    declare(config_file, lambda _: quality.remove_quality(key), by, reason)
    click.echo(f"withdrew the quality rules of stream {'/'.join(key)}")


@hub_quality_group.command("get")
@config_argument
@stream_argument
@json_option
def get_quality(config_file: str, stream: str, *, as_json: bool) -> None:
    """Print the rules of STREAM in YAML, as `set` reads them."""
    from weft.config.pipelines.quality_text import rules_text

    key = key_of(stream)
    name, state = "/".join(key), read_facts(config_file)
    known, unusable = _known(state)
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


@hub_quality_group.command("list")
@config_argument
@json_option
def list_quality(config_file: str, *, as_json: bool) -> None:
    """List the streams with quality rules in the cluster log of CONFIG.

    `quality` of `GET /v1/status` has what was counted, and `weft hub status` names alarms.
    """
    from weft.cloud_hub.api.views import moment
    from weft.storage.table.quality.declared import QUALITY

    state = read_facts(config_file)
    known, unusable = _known(state)
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
                each["stream"], each["version"],
                f"this release cannot read them: {each['unusable']}" if each["unusable"] else ", ".join(each["rules"]),
                each["changed"], each["by"], each["reason"],
            )
            for each in rows
        ],
    )  # fmt: skip


def _known(state: ClusterState) -> tuple[dict[str, StreamQuality], dict[str, str]]:
    """Return the rules by stream, and those that cannot be read, each with the reason."""
    from weft.storage.table.quality.declared import DeclaredQuality

    declared = DeclaredQuality()
    declared.refresh(state)
    return {"/".join(key): found for key, found in declared.streams.items()}, declared.unusable


def _read(file: str) -> QualityRules:
    from weft.config.errors import ConfigError
    from weft.config.pipelines.quality_text import parse_rules

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
