"""``weft hub table``: what the cluster log declares of the tables of streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from weft.commands.common import config_argument, json_option, load_hub
from weft.commands.on_store.declaring import declare, read_facts
from weft.commands.on_store.opening import by_option, on_store, reason_option
from weft.commands.on_store.stream import key_of
from weft.config.units import format_duration, format_size, parse_duration, parse_size
from weft.output import Refused, print_json, print_table

RETAIN_S_MIN, RETAIN_BYTES_MIN = 3600, 1 << 20


@click.group("table")
def hub_table_group() -> None:
    """Declare tables of streams at a hub's store, whether nodes run or not.

    Running hubs know a change two seconds later.
    """


@hub_table_group.command("set")
@config_argument
@click.argument("stream", metavar="[TENANT/]STREAM")
@click.option(
    "--latest",
    metavar="KEY",
    help="Make a latest table, with the newest row for each KEY. It is `_key`, `_edge`, a topic level such as "
    "`machine`, or a field of JSON payloads such as `payload.order.id`. Several stand with commas between them.",
)
@click.option("--every", metavar="DURATION", help="Interval at which the latest table is written; 1m by default.")
@click.option("--feed", is_flag=True, help="Give the latest table a change feed, if it is not there yet.")
@click.option(
    "--instead",
    is_flag=True,
    help="Keep no table of all rows beside it. Rows that newer ones of their key replaced are gone with the log, for "
    "good.",
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
@reason_option
@by_option
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
    reason: str,
    by: str | None,
) -> None:
    """Declare tables of STREAM at the hubs of CONFIG. What is not named stays as it was declared.

    Retention removes whole files from the table of all rows, from the oldest on. The audit takes their rows for
    removed, and not for missing. The log has a retention of its own (`retain_log`), and --retain-log makes it
    longer. A chunk has records of many streams, and stays for the longest term of them.

    The order of --sort holds for new files, and for old ones when they are joined. A filter on its first column reads
    a small part of the table. Without it, rows are sorted by topic levels, edge node, key and time.

    A latest table is a Delta table in the folder `latest/TENANT/STREAM` of the store, beside the table of all rows. A
    record without a payload deletes its key's row.

    With --instead it is the only table of the stream, for good. A table of all rows that is there is kept on, until its
    folder is moved away.

    \b
    weft hub table set hub.yaml acme/machines --latest machine --every 30s
    weft hub table set hub.yaml acme/telemetry --retain 365d --sort order_id
    """
    from weft.cloud_hub.declared import tables
    from weft.cloud_hub.declared.changes import CannotDeclare

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
    if document is None and retain_s is None and retain_bytes is None and log_s is None and columns is None:
        raise Refused("name what to declare: --latest, --retain, --retain-size, --retain-log or --sort")
    if log_s is not None:
        _check_term(config_file, log_s)
    try:
        decision = tables.set_table(
            key, latest=document, retain_s=retain_s, retain_bytes=retain_bytes, log_s=log_s, sort=columns
        )
    except CannotDeclare as error:
        raise Refused(str(error)) from None
    declare(config_file, lambda _: decision, by, reason)
    click.echo(f"declared tables of {'/'.join(key)}")


@hub_table_group.command("remove")
@config_argument
@click.argument("stream", metavar="[TENANT/]STREAM")
@reason_option
@by_option
def remove_table(config_file: str, stream: str, *, reason: str, by: str | None) -> None:
    """Withdraw what is declared of the tables of STREAM at the hubs of CONFIG.

    A latest table is written no more, and its folder stays: delete it, or declare the table again and it goes on. A
    table that is the only one stays declared once the log has lost chunks: the table of all rows could not be made.
    """
    from weft.cloud_hub.declared import tables
    from weft.cloud_hub.tables.only_latest import first_kept

    key = key_of(stream)
    known = tables.DeclaredTables()
    known.refresh(read_facts(config_file))
    if known.is_instead(key) and (kept := on_store(config_file, lambda store: first_kept(store, key))) is not None:
        raise Refused(
            f"{'/'.join(key)} has only a latest table. A table of all rows can no longer be made: the log of shard "
            f"{kept.shard} begins with chunk {kept.n}. To end the stream, use `weft hub stream delete`"
        )
    declare(config_file, lambda _: tables.remove_table(key), by, reason)
    click.echo(f"withdrew the tables of {'/'.join(key)}")


@hub_table_group.command("list")
@config_argument
@json_option
def list_tables(config_file: str, *, as_json: bool) -> None:
    """List what the cluster log of CONFIG declares of tables.

    `weft hub status` has the progress of latest tables (`latest_tables` of `GET /v1/status`).
    """
    from weft.cloud_hub.api.views import moment
    from weft.cloud_hub.declared.documents import TABLE, parse_stream_name
    from weft.cloud_hub.declared.tables import DeclaredTables

    state, known = read_facts(config_file), DeclaredTables()
    known.refresh(state)
    found: list[dict[str, Any]] = []
    for name, fact in sorted(state.facts(TABLE).items()):
        document = known.documents.get(parse_stream_name(name))
        latest = document.latest if document is not None else None
        found.append({
            "stream": name,
            "latest": list(latest.key) if latest is not None else None,
            "every": format_duration(latest.every_s) if latest is not None else None,
            "feed": latest.feed if latest is not None else None,
            "instead": latest.instead if latest is not None else None,
            "retain": format_duration(document.retain_s) if document and document.retain_s else None,
            "retain_size": format_size(document.retain_bytes) if document and document.retain_bytes else None,
            "retain_log": format_duration(document.log_s) if document and document.log_s else None,
            "sort": list(document.sort) if document and document.sort else None,
            "version": fact.version,
            "changed": moment(fact.at),
            "by": fact.by,
            "reason": fact.reason,
            "unusable": known.unusable.get(name),
        })  # fmt: skip
    if as_json:
        print_json(found)
        return
    print_table(
        ("stream", "latest by", "every", "retain", "log", "sorted by", "changed", "by", "reason"),
        [
            (
                each["stream"],
                _shown(each),
                each["every"] or "",
                " and ".join(filter(None, (each["retain"], each["retain_size"]))),
                each["retain_log"] or "",
                ", ".join(each["sort"] or ()),
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
        raise Refused("--retain-log: the hub keeps its log for good. Set `retain_log` to the shortest term first")
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
    if not least <= found < 1 << 53:
        raise Refused(f"{option}: {text} is less than {least_text}, or far too much")
    return found


def _columns(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(part.strip() for part in text.split(","))


def _latest(key: str, every: str | None, *, feed: bool, instead: bool) -> Any:
    from weft.cloud_hub.declared.documents import LatestDocument
    from weft.cloud_hub.declared.table_keys import wrong_part

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
