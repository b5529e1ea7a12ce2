"""Streams of a hub's store, whether nodes run or not: deletion of streams, skipped records, erased and deleted rows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from weft.cloud_hub.facts.fact import UnreadableDocument, decode, stream_name
from weft.cloud_hub.facts.streams import expect_edges
from weft.cloud_hub.shard import lane_ends
from weft.commands.common import (
    by_option,
    config_argument,
    confirm,
    json_option,
    load_hub,
    tenant_option,
    user_name,
    yes_option,
)
from weft.commands.hub_access import Act, acting, begin, decision_options, declare, declaring, on_store, read_facts
from weft.commands.hub_settings import longest_round_s
from weft.hub_api.answers import moment
from weft.output import FAILURE_EXIT_CODE, Failed, Refused, counted, harmless, print_json
from weft.protocols.errors import CodecError
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import NotFound, ObjectStore
from weft.storage.table.actions import TableError
from weft.storage.table.deletions import FORMAT, Deletion
from weft.storage.table.schemas import STREAM, StreamDocument

if TYPE_CHECKING:
    from weft.cloud_hub.shard.lane_ends import Ending
    from weft.cloud_hub.stream_deletion import Deleted, Patience
    from weft.cloud_hub.stream_deletion import Deletion as StreamDeletion
    from weft.cloud_hub.tables.erasure import Choice, ErasedRows
    from weft.proofs.audit.audit import Rows
    from weft.protocols.shard.shard_state import ShardState


# ``weft hub stream``: work on the streams of a hub's store, whether nodes run or not.

BY_MAX, REASON_MAX = 128, 512
"""Maximum numbers of characters."""


def key_of(stream: str) -> tuple[str, str]:
    """Return tenant and name of ``[TENANT/]STREAM``."""
    tenant, slash, name = stream.rpartition("/")
    return (tenant if slash else "default", name)


@click.command()
@config_argument
@click.argument("stream", metavar="[TENANT/]STREAM")
@click.option("--reason", required=True, help="Reason, in a few words; recorded with the stream.")
@click.option("--by", help="Name of the person who decided; the user of this process by default.")
@click.option("--force", is_flag=True, help="Do it though an edge was seen less than 10 minutes ago.")
@yes_option
def delete(config_file: str, stream: str, *, reason: str, by: str | None, force: bool, yes: bool) -> None:
    """Delete STREAM at the hub of CONFIG; its table stays, and a later stream of the same name continues in it.

    Use another name for a stream with another meaning. The command prints the offsets at which rows of a later stream
    start, in the form of a read's `starting`. Rows below are those of the deleted one.

    The stream leaves lists, status, metrics and completeness, with its topic levels, lanes and open gaps. Its Delta
    table stays, with all its rows, and so does the log until its retention. The next offset remains: when an edge sends
    to the stream again, the stream is back and continues there, in the same table. No record is stored twice.

    Remove the stream from the edges' configurations first. The command refuses a stream that an edge was seen with less
    than 10 minutes ago, or whose table lacks records. With --force it takes a stream that edges send to, and waits for
    the next round of the tables.

    \b
    weft hub stream delete hub.yaml plant-7/vibration-test --reason "trial is over"
    """
    from weft.cloud_hub import stream_deletion  # imports pyarrow

    key = key_of(stream)
    by = by or user_name()
    for option, text, most in (("--by", by, BY_MAX), ("--reason", reason, REASON_MAX)):
        if len(text) > most:
            raise Failed(f"{option}: {len(text)} characters are too many, at most {most}")
    config = load_hub(config_file)
    wanted = stream_deletion.Deletion(key, by, reason, config.tables is not None, force)
    patience = stream_deletion.Patience(longest_round_s(config), partial(click.echo, err=True)) if force else None

    if not yes:
        confirm(f"delete stream {key[1]} of tenant {key[0]}? Its table stays", "nothing was deleted")
    try:
        done = asyncio.run(_delete(acting(config_file, f"stream {'/'.join(key)}", by, reason), wanted, patience))
    except (stream_deletion.CannotDelete, CodecError) as error:
        raise Failed(str(error)) from None
    later = f"Rows of a later stream begin at {json.dumps({str(at): end for at, end in sorted(done.ends.items())})}"
    if not done.shards:
        click.echo(f"stream {key[1]} of tenant {key[0]} is deleted already. {later}")
        return
    click.echo(
        f"deleted stream {key[1]} of tenant {key[0]}, with {counted(done.lanes, 'lane')} and "
        f"{counted(done.records, 'record')}; its table stays, and a later stream of this name continues in it: {reason}"
    )
    click.echo(f"Use another name for a stream with another meaning. {later}, as `starting` of a read")
    click.echo("The log keeps the records until its retention")


async def _delete(act: Act, wanted: StreamDeletion, patience: Patience | None) -> Deleted:
    from weft.cloud_hub.stream_deletion import delete

    async with act as (store, clock):
        return await delete(
            store,
            await open_cluster(store, None),
            wanted,
            wall_clock=clock,
            random_bits=random.SystemRandom().getrandbits,
            patience=patience,
        )


async def _has_table(store: ObjectStore, key: tuple[str, str]) -> bool:
    return bool(await store.list(table_key(*key), limit=1))


@click.command("expect")
@config_argument
@click.argument("stream", metavar="[TENANT/]STREAM")
@click.argument("edges", nargs=-1)
@click.option("--withdraw", is_flag=True, help="Withdraw the declaration: the edges that have linked count.")
@decision_options
def expect(
    config_file: str, stream: str, edges: tuple[str, ...], *, withdraw: bool, reason: str, by: str | None
) -> None:
    """Declare the EDGES without which STREAM is not complete, for all hubs of the store of CONFIG.

    They are names, or patterns in which `*` matches any characters, and replace those declared before. Running hubs
    apply it after two seconds. Without EDGES, the command shows what is declared.

    \b
    weft hub stream expect hub.yaml acme/telemetry 'press-*' welder-1
    """
    key = key_of(stream)
    if withdraw and edges:
        raise Refused("--withdraw cannot be combined with EDGES")
    if withdraw or edges:
        with declaring():
            decision = expect_edges(key, None if withdraw else edges)
        if edges:
            begin(config_file, [decision], by, reason)
        declare(config_file, decision, by, reason)
        click.echo(f"withdrew the edges of {'/'.join(key)}" if withdraw else f"declared the edges of {'/'.join(key)}")
        if edges and load_hub(config_file).tables is not None and not on_store(config_file, _has_table, key):
            name = "/".join(key)
            click.echo(
                f"warning: there is no table of {name} yet: check the name. `weft streams` lists the streams", err=True
            )
        return
    fact = read_facts(config_file).facts(STREAM).get(stream_name(key))
    try:
        found = None if fact is None else decode(fact.document, StreamDocument).expected_edges
    except UnreadableDocument as error:
        raise Failed(f"this release cannot read what is declared of {'/'.join(key)}: {error}") from None
    if found is None:
        raise Failed(f"the cluster log declares no edges of {'/'.join(key)}: those that have linked count")
    for edge in found:
        click.echo(edge)


# ``weft hub skip``: take records that cannot become rows out of a stream's table.


@click.command()
@config_argument
@click.argument("stream")
@tenant_option("Tenant of the stream.")
@click.option("--shard", type=click.IntRange(0), default=0, show_default=True, help="Shard of the offsets.")
@click.option("--from", "first", type=click.IntRange(0), required=True, help="First offset to skip.")
@click.option("--to", "end", type=click.IntRange(1), required=True, help="Offset after the last to skip.")
@click.option("--reason", required=True, help="Reason, in a few words; recorded with the offsets.")
@by_option
@yes_option
def skip(
    config_file: str,
    stream: str,
    *,
    tenant: str,
    shard: int,
    first: int,
    end: int,
    reason: str,
    by: str | None,
    yes: bool,
) -> None:
    """Skip records of STREAM that stop its table at the hub of CONFIG; `weft hub status` names them.

    The table continues after them, whether nodes run or not. The log keeps the records, and completeness and `weft
    audit` report them as skipped, with the reason. It cannot be reverted: records that are rows already stay rows, and
    the others never become rows.
    """
    if not yes:
        confirm(
            f"skip offsets {first} to {end - 1} of shard {shard} of {tenant}/{stream}? Records that are not rows yet "
            "never become rows",
            "nothing was skipped",
        )
    target = f"stream {tenant}/{stream}, shard {shard}, offsets {first} to {end - 1}"
    try:
        ending = asyncio.run(
            _skip(acting(config_file, target, by, reason), (tenant, stream), shard, first, end, reason)
        )
    except (lane_ends.CannotSkip, CodecError) as error:
        raise Failed(str(error)) from None
    if ending.controls:
        click.echo(f"the table of {tenant}/{stream} skips offsets {first} to {end - 1} of shard {shard}: {reason}")
    else:
        click.echo(f"the table of {tenant}/{stream} skips offsets {first} to {end - 1} of shard {shard} already")


async def _skip(  # noqa: PLR0917 - what is skipped, and why
    act: Act, stream: tuple[str, str], shard: int, first: int, end: int, reason: str
) -> Ending:
    async with act as (store, clock):
        cluster = await open_cluster(store, None)
        if shard >= cluster.tree.count:
            raise Failed(f"--shard {shard}: the hub has shards 0 to {cluster.tree.count - 1}")
        log = ShardLog(store, cluster, shard)
        plan = partial(_plan_of_skip, log=log, stream=stream, first=first, end=end, reason=reason)
        return await lane_ends.write_ending(log, plan, wall_clock=clock, random_bits=random.SystemRandom().getrandbits)


async def _plan_of_skip(  # noqa: PLR0917 - what is skipped, and why
    state: ShardState, log: ShardLog, stream: tuple[str, str], first: int, end: int, reason: str
) -> Ending:
    ending = await lane_ends.skip(state, log, stream, first, end, reason)
    if ending.controls:
        await _check_needed(log, stream, end)
    return ending


async def _check_needed(log: ShardLog, stream: tuple[str, str], end: int) -> None:
    """Refuse to skip what the table has gone past: audit and completeness would call rows that are there skipped."""
    from weft.storage.table_writer.tiering import table_position

    position = None
    with contextlib.suppress(TableError):  # what a table that cannot be read has is unknown
        position = await table_position(log.store, log, stream)
    if position is not None and end <= position:
        raise lane_ends.CannotSkip(
            f"the table has all offsets of shard {log.shard} below {position}, so none of these stops it. "
            "`weft hub status` names those that do"
        )


# ``weft hub declare-deletion``: declare rows that are deleted from a table on purpose, for the audit.

_MOMENT = click.DateTime(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d"])


@click.command("declare-deletion")
@config_argument
@click.argument("stream")
@tenant_option("Tenant of the stream.")
@click.option("--key", help="Rows with this _key, the topic as a rule.")
@click.option("--edge", help="Rows of this edge.")
@click.option("--log", "log_id", metavar="ID", help="Rows of this log.")
@click.option("--from", "first", type=click.IntRange(0), help="First sequence number; needs --edge.")
@click.option("--to", "end", type=click.IntRange(1), help="Sequence number after the last; needs --edge.")
@click.option("--since", type=_MOMENT, help="First _time, UTC.")
@click.option("--until", type=_MOMENT, help="_time after the last, UTC.")
@click.option("--version", type=click.IntRange(0), help="Version of the table with the rows; the newest by default.")
@click.option("--by", help="Name of the person who decided; the user of this process by default.")
@click.option("--reason", required=True, help="Reason, in a few words; recorded with the declaration.")
@yes_option
def declare_deletion(  # noqa: PLR0917
    config_file: str,
    stream: str,
    tenant: str,
    key: str | None,
    edge: str | None,
    log_id: str | None,
    first: int | None,
    end: int | None,
    since: datetime | None,
    until: datetime | None,
    version: int | None,
    by: str | None,
    reason: str,
    *,
    yes: bool,
) -> None:
    """Declare that rows of STREAM are deleted from its table on purpose, at the hub of CONFIG.

    Declare first, then delete with any engine. The declaration covers the rows that the table has now and the options
    select. `weft audit` counts missing rows as deleted if they were declared, and as lost otherwise. Later rows are not
    covered. After a deletion, name the --version that had the rows. Nothing is deleted by this command, and the hub's
    log keeps the records.

    \b
    weft hub declare-deletion hub.yaml telemetry --key plant/a/m1/telemetry --reason "request 4711"
    weft hub declare-deletion hub.yaml telemetry --until 2026-01-01 --reason "kept for a year"
    """
    from weft.proofs.audit.audit import Rows

    rows = Rows(key, edge, log_id, first, end, _utc(since), _utc(until))
    if not rows.text:
        raise Refused("name the rows: --key, --edge, --log, --since or --until")
    if edge is None and (first is not None or end is not None):
        raise Refused("--from and --to are numbers of one edge's lane: give --edge too")
    try:
        deletion = on_store(config_file, _found, (tenant, stream), rows, version, by or user_name(), reason)
    except TableError as error:
        raise Failed(str(error)) from None
    if not deletion.count:
        raise Failed(f"version {deletion.version} of the table of {tenant}/{stream} has no such rows: {rows.text}")
    what = f"{counted(deletion.count, 'row')} of {tenant}/{stream} ({rows.text})"
    if not yes:
        confirm(f"declare {what} as deleted? The audit no longer calls them lost", "nothing was declared")
    # Without the rows' names: a line is kept for good, and they may be personal data.
    target = f"{counted(deletion.count, 'row')} of {tenant}/{stream}, as of version {deletion.version}"
    asyncio.run(_declare(acting(config_file, target, by, reason), (tenant, stream), deletion))
    click.echo(f"declared {what} as deleted, as of version {deletion.version}: {reason}")


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)


async def _found(  # noqa: PLR0917 - what is declared, and by whom
    store: ObjectStore, key: tuple[str, str], rows: Rows, version: int | None, by: str, reason: str
) -> Deletion:
    from weft.proofs.audit.audit import find_rows, stored

    found, lanes, offsets = await find_rows(store, *key, rows, version)
    shards = [(shard, list(held)) for shard, held in sorted(offsets.held.items())]
    return Deletion(FORMAT, time.time_ns(), by, reason, rows.text, found, stored(lanes), shards)


async def _declare(act: Act, key: tuple[str, str], deletion: Deletion) -> None:
    from weft.storage.table.deletions import declare

    async with act as (store, _):
        await declare(store, *key, deletion)


# ``weft hub erase`` and ``weft hub erasures``: rows that must be nowhere any more, and the proof that they are not.


@click.command("erase")
@config_argument
@click.argument("stream", metavar="[TENANT/]STREAM")
@click.option("--key", help="Rows with this _key, the topic as a rule.")
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="NAME=VALUE",
    help="Rows with this value of a column or topic level, or of a field of JSON payloads (`payload.person.id=4711`). "
    "With several, all must be met.",
)
@click.option("--by", help="Name of the person who decided; the user of this process by default.")
@click.option("--reason", required=True, help="Reason, in a few words, without personal data; recorded for good.")
@yes_option
def erase(
    config_file: str,
    stream: str,
    *,
    key: str | None,
    conditions: tuple[str, ...],
    by: str | None,
    reason: str,
    yes: bool,
) -> None:
    """Erase rows of STREAM at the hub of CONFIG, so that no engine, no reader and no file has them.

    The table of all rows and the latest table are rewritten without the matching rows that they have now. The log and
    files of replaced versions keep them for a grace: `retain_log`, and `tables.vacuum_after`. `weft hub erasures` shows
    what is left, and proves the end. Later records, edges' own logs, other streams and backups are not covered.

    \b
    weft hub erase hub.yaml visits --where payload.person.id=4711 --reason "case 12"
    """
    from weft.cloud_hub.tables.erasure import Choice

    name, by = key_of(stream), by or user_name()
    for option, text, most in (("--by", by, BY_MAX), ("--reason", reason, REASON_MAX)):
        if len(text) > most:
            raise Refused(f"{option}: {len(text)} characters are too many, at most {most}")
    try:
        choice = Choice(_conditions(key, conditions))
    except ValueError as error:
        raise Refused(f"--where: {error}") from None
    if load_hub(config_file).retain_log_s is None:
        raise Failed(
            "the hub keeps its log, and with it the records, without a limit. Set `retain_log`, "
            "such as `retain_log: 30d`, restart the hub, and run the command again"
        )

    if not yes:
        confirm(f"erase rows of {'/'.join(name)} ({choice.text})? This cannot be undone", "nothing was erased")
    try:
        # Without the rows' names: a line is kept for good, and they may be personal data.
        done = asyncio.run(
            _erase(acting(config_file, f"rows of {'/'.join(name)}", by, reason), name, choice, by, reason)
        )
    except (TableError, NotFound, CodecError, CollectedPast) as error:
        raise Failed(str(error)) from None
    if not done.rows and not done.latest and not done.recorded:
        raise Failed(f"the tables of {'/'.join(name)} have no such rows")
    click.echo(
        f"erased {counted(done.rows, 'row')} of the table of {'/'.join(name)}, and {done.latest} of its latest table"
    )
    click.echo("The log and replaced files keep them for a grace: `weft hub erasures` shows what is left")


async def _erase(act: Act, stream: tuple[str, str], choice: Choice, by: str, reason: str) -> ErasedRows:
    from weft.cloud_hub.tables.erasure import Author, Eraser

    async with act as (store, clock):
        eraser = Eraser(
            store,
            await open_cluster(store, None),
            stream,
            clock=clock,
            monotonic=time.monotonic,
            nonce=lambda: secrets.token_hex(8),
        )
        return await eraser.erase(choice, Author(by, reason, clock()))


@click.command("erasures")
@config_argument
@click.argument("stream", metavar="[TENANT/]STREAM")
@click.option("--tidy", is_flag=True, help="Delete replaced files and old entries of the tables now, if old enough.")
@decision_options
@json_option
def erasures(config_file: str, stream: str, *, tidy: bool, reason: str, by: str | None, as_json: bool) -> int:
    """Show the erasures of STREAM at the hub of CONFIG, and what still has their records.

    Exit status 1 if anything has. Hubs delete by themselves what is old enough. With --tidy, the command does it for
    the tables of STREAM: a table without new rows writes no checkpoint, and keeps entries of its log. Chunks of the log
    are left to the hub.
    """
    from weft.cloud_hub.tables.erasure import erasures as find

    name = key_of(stream)
    try:
        if tidy:
            asyncio.run(_tidy(acting(config_file, f"replaced files of {'/'.join(name)}", by, reason), name))
        found = on_store(config_file, find, name)
    except TableError as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json(found)
    for each in found if not as_json else ():
        rows = f"{counted(each.count, 'row')} ({harmless(each.rows)})"
        click.echo(f"{moment(each.time)} {rows} by {harmless(each.by)}: {harmless(each.reason)}")
        for wait in each.waits or ("nothing is left of them",):
            click.echo(f"  {harmless(wait)}")
    if not found and not as_json:
        click.echo(f"nothing was erased of {'/'.join(name)}")
    return FAILURE_EXIT_CODE if any(each.waits for each in found) else 0


async def _tidy(act: Act, stream: tuple[str, str]) -> None:
    from weft.cloud_hub.tables.erasure import tidy

    async with act as (store, clock):
        await tidy(store, await open_cluster(store, None), stream, clock())


def _conditions(key: str | None, given: tuple[str, ...]) -> list[tuple[str, str]]:
    found = [] if key is None else [("_key", key)]
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise Refused(f"--where: expected NAME=VALUE, got {each!r}")
        found.append((name.strip(), value))
    if not found:
        raise Refused("name the rows: --key or --where")
    return found
