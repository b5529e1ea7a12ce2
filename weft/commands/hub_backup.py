"""``weft hub backup``, ``restore`` and ``verify``: copies of a hub's store, and what a store or a copy has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from weft.cloud_hub.facts.hub import BackupDocument, note_backup
from weft.cloud_hub.facts.tokens import demands_tokens
from weft.commands.common import config_argument, existing_store, json_option, load_hub, open_hub_store, store_trouble
from weft.commands.hub_access import author_of, declare
from weft.config.limits import REASON_CHARACTERS_MAX
from weft.config.units import is_bucket
from weft.output import FAILURE_EXIT_CODE, Failed, counted, harmless, print_json, print_table
from weft.proofs.backup.view import BackupUnusable, is_inside, open_backup
from weft.protocols.errors import CodecError
from weft.storage import hub_keys
from weft.storage.cluster import ClusterUnusable, open_cluster
from weft.storage.cluster_log import ClusterLog
from weft.storage.object_store import NotFound, StoreError, StoreUnfit
from weft.storage.table.actions import TableError
from weft.text.record import timestamp

if TYPE_CHECKING:
    from weft.proofs.backup.view import BackupRecord, Copied
    from weft.proofs.verify import LaneEnd, VerifyReport
    from weft.storage.object_store import ObjectStore


T = TypeVar("T")
EDGES_SHOWN = 20
RUNS_SHOWN = 5
"""Runs of lost records that are shown of a lane."""
OPEN = (
    "the cluster log of this store requires no token: a hub without `jwt` or `anonymous: never` admits everyone. "
    "Tokens added after the backup are missing: add them with `weft hub token add`"
)
"""Warning at the end of a restore or a verification of a store that admits everybody."""


def _on_stores(uris: str, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``, and report its errors."""
    try:
        return asyncio.run(work)
    except (BackupUnusable, ClusterUnusable, CodecError, TableError, StoreUnfit) as error:
        raise Failed(f"{uris}: {error}") from None
    except StoreError as error:
        raise Failed(f"{uris}: {store_trouble(uris, error)}. Run the command again: it continues") from None


def _refuse_links(uri: str) -> None:
    """Refuse a folder with links to other folders, whose files a restore would copy with the rights of its user."""
    if is_bucket(uri):
        return
    for folder, folders, _ in os.walk(uri):
        for name in folders:
            if os.path.islink(path := os.path.join(folder, name)):
                raise Failed(
                    f"{uri}: {path} is a symbolic link, which a backup never contains. Check who can write to it"
                )


async def _is_open(store: ObjectStore) -> bool:
    """Return whether the cluster log of a store, or of a backup, demands no token. One that cannot be read does."""
    try:
        state = await ClusterLog(store, (await open_cluster(store, None)).cluster_id).load()
    except CodecError:
        return False
    return not demands_tokens(state) and not state.skipped


def _note(as_json: bool) -> Callable[[str], None]:
    return (lambda line: None) if as_json else (lambda line: click.echo(harmless(line)))  # noqa: ARG005


async def _back_up(
    uri: str, target: str, *, prune: bool, note: Callable[[str], None]
) -> tuple[BackupRecord, Copied, int]:
    from weft.proofs.backup.backup import make_backup
    from weft.proofs.backup.backup import prune as prune_backup

    place = open_hub_store(target)
    made = await make_backup(open_hub_store(uri), place, clock=time.time_ns, note=note)
    view = await open_backup(place) if prune else None
    return *made, 0 if view is None else await prune_backup(place, view)


async def _restore(source: str, target: str, *, note: Callable[[str], None]) -> tuple[Copied, list[str], int, bool]:
    from weft.proofs.backup.backup import restore as restore_backup

    _refuse_links(source)
    if is_inside(open_hub_store(target), open_hub_store(source)):
        raise BackupUnusable("the new store would be inside the backup: name another place")
    view = await open_backup(open_hub_store(source))
    if view is None:
        raise BackupUnusable(await _no_backup(open_hub_store(source), source))
    author = author_of(0, None, f"the store was restored from {source}"[:REASON_CHARACTERS_MAX])
    copied, drained = await restore_backup(view, open_hub_store(target), clock=time.time_ns, note=note, author=author)
    return copied, drained, view.record.started, await _is_open(view)


@click.command()
@config_argument
@click.option("--to", "target", required=True, metavar="URI", help="Place of the backup: a folder, or a bucket's URI.")
@click.option("--prune", is_flag=True, help="Delete from the backup what belongs to earlier states of the store.")
@json_option
def backup(config_file: str, target: str, *, prune: bool, as_json: bool) -> None:
    """Copy the store of the hub of CONFIG to another place, while its nodes run.

    The copy has every record that was acknowledged before the command began, and is consistent: log, snapshots, tables
    and everything else fit each other. Run again, the command copies what is new. After an interruption it continues;
    the last complete backup remains until the next one is complete. Its end is declared in the cluster log, so that
    `weft hub status` and `weft_hub_backup_age_seconds` report its age. With --prune, chunks that the hub has deleted,
    files that its tables no longer have, and streams that were deleted leave the backup after that.

    \b
    weft hub backup hub.yaml --to s3://plant-backup/weft
    """
    uri = load_hub(config_file).store

    copying = _back_up(uri, target, prune=prune, note=_note(as_json))
    record, copied, deleted = _on_stores(f"{uri} to {target}", copying)
    _declare(config_file, target, record)
    if as_json:
        print_json(
            {
                "started": record.started,
                "finished": record.finished,
                "shards": [{"shard": each.shard, "first": each.first, "end": each.end} for each in record.shards],
                "tables": [
                    {"tenant": each.tenant, "stream": each.stream, "version": each.version} for each in record.tables
                ],
                "copied": copied.objects,
                "copied_bytes": copied.bytes,
                "deleted": deleted,
            }
        )
        return
    if prune:
        click.echo(f"deleted {counted(deleted, 'object')} of earlier states")
    click.echo(f"copied {counted(copied.objects, 'object')} of {copied.bytes / 1e6:.1f} MB; {target} is complete up to")
    click.echo(f"{timestamp(record.started)}. `weft hub verify --store {target}` reads it through")


def _declare(config_file: str, target: str, record: BackupRecord) -> None:
    """Declare that the backup is complete, so that hubs tell its age."""
    done = BackupDocument(record.started, record.finished)
    try:
        declare(config_file, note_backup(target, done), None, "")
    except Failed as failure:  # the backup is complete all the same, as with credentials that may only read
        click.echo(
            f"warning: hubs do not know of this backup, and continue to report the age of the last: {failure}", err=True
        )


@click.command()
@click.option("--from", "source", required=True, metavar="URI", help="Place of the backup.")
@click.option("--to", "target", required=True, metavar="URI", help="The new store, which is empty.")
@json_option
def restore(source: str, target: str, *, as_json: bool) -> None:
    """Copy a backup into a new store, from which hubs then run.

    Stop the hubs of the lost store first. After an interruption the command continues. The backup remains as it is.
    Edges that still hold later records send them by themselves. Nodes that were drained are so no longer.

    \b
    weft hub restore --from s3://plant-backup/weft --to s3://plant-data/weft-2
    """
    restoring = _restore(source, target, note=_note(as_json))
    copied, drained, started, is_open = _on_stores(f"{source} to {target}", restoring)
    if as_json:
        facts = {"backup_of": started, "copied": copied.objects, "copied_bytes": copied.bytes, "drains_ended": drained}
        print_json({**facts, "demands_tokens": not is_open})
        return
    click.echo(f"restored {counted(copied.objects, 'object')} of {copied.bytes / 1e6:.1f} MB, of {timestamp(started)}.")
    if drained:
        named = harmless(", ".join(drained))
        click.echo(f"drained in the backup, and no longer: {named}. `weft hub drain CONFIG NODE` drains one again")
    click.echo(f"Start a hub with `store: {target}`; `weft hub verify --store {target}` reports what is lost")
    if is_open:
        click.echo(f"warning: {OPEN}", err=True)


async def _no_backup(store: ObjectStore, uri: str) -> str:
    """Return what is in place of a backup."""
    with contextlib.suppress(NotFound):
        await store.get(hub_keys.CLUSTER)
        return "this is a hub's store, not a backup. Name the destination of `weft hub backup CONFIG --to URI`"
    path = uri.removeprefix("file://")
    if "://" not in path and not os.path.exists(path):
        return "the folder does not exist. Name the destination of `weft hub backup CONFIG --to URI`"
    return "there is no complete backup. If `weft hub backup` was interrupted, run it again"


@click.command()
@click.option("--store", "uri", required=True, metavar="URI", help="A hub's store, or the place of a backup.")
@click.option("--lanes", is_flag=True, help="Show every lane, not only those with lost records.")
@json_option
def verify(uri: str, *, lanes: bool, as_json: bool) -> int:
    """Read all of a hub's store or a backup, and report what is missing or damaged.

    Every chunk is read and its checksums are compared; snapshots are compared with the chunks, tables with their files
    and with the log. Exit status 1 if anything is wrong, or if records are lost. It changes nothing, and hubs may run
    meanwhile.

    After a restore, the table of lanes names the records that edges no longer had when the hub asked for them again:
    they are lost. Later records than those of the table are not known to this store. Their edges send them by
    themselves, if they still have them.

    \b
    weft hub verify --store s3://plant-data/weft
    """
    report, is_open = _on_stores(uri, _verify(uri))
    gone = [lane for lane in report.lanes if lane.gone]
    if as_json:
        print_json({**msgspec.to_builtins(report), "demands_tokens": not is_open})
    else:
        _show(report, report.lanes if lanes else gone)
        if is_open:
            click.echo(f"note: {OPEN}", err=True)
    return 0 if report.is_whole and not gone and not report.lost else FAILURE_EXIT_CODE


async def _verify(uri: str) -> tuple[VerifyReport, bool]:
    from weft.proofs.verify import verify as verify_store

    store = existing_store(uri)
    report = await verify_store(store)
    return report, await _is_open(await open_backup(store) or store)


def _show(report: VerifyReport, lanes: list[LaneEnd]) -> None:
    if report.backup_of is not None:
        click.echo(f"a backup of cluster {report.cluster} of {timestamp(report.backup_of)}")
    elif report.restored:
        click.echo(f"the store of cluster {report.cluster}, restored at {timestamp(report.restored)}")
    else:
        click.echo(f"the store of cluster {report.cluster}")
    rows = [(each.shard, each.first, each.end, each.chunks, each.snapshots, each.bytes) for each in report.shards]
    print_table(("shard", "first chunk", "end", "sound chunks", "snapshots", "bytes"), rows)
    if report.tables:
        tables = [(each.tenant, each.stream, each.version, each.files) for each in report.tables]
        print_table(("tenant", "table", "version", "files"), tables)
    for finding in report.findings:
        click.echo(f"{finding.what.upper().replace('_', ' ')}: {harmless(finding.sentence)}")
    if report.findings_more:
        click.echo(f"and {counted(report.findings_more, 'finding')} more")
    for run in report.lost:
        lane = f"{run.tenant}/{run.stream} of edge {run.edge}, log {run.log}"
        click.echo(f"LOST: records {run.first} to {run.end - 1} of {harmless(lane)} were in chunks that are missing")
    if lanes:
        _show_lanes(lanes)
    edges = {(lane.tenant, lane.edge) for lane in report.lanes}
    click.echo(
        f"{counted(len(report.lanes), 'lane')} of {counted(len(edges), 'edge')}. Edges send the records that follow "
        "by themselves"
    )
    awaited = sorted({lane.edge for lane in report.lanes if lane.is_awaited and not lane.retired})
    if awaited:
        more = f" and {len(awaited) - EDGES_SHOWN} more" if len(awaited) > EDGES_SHOWN else ""
        named = harmless(", ".join(awaited[:EDGES_SHOWN]))
        click.echo(f"NOT YET HEARD since the restore, so that later records may be lost: {named}{more}")
    lost = sum(end - first for lane in report.lanes for first, end in lane.gone)
    if lost:
        click.echo(f"LOST: {counted(lost, 'record')}, which edges had deleted after this hub had acknowledged them")
    if report.is_whole and not report.lost:
        click.echo("good: all objects that the store refers to exist and are intact")


def _show_lanes(lanes: list[LaneEnd]) -> None:
    rows = [
        (
            lane.edge,
            lane.log,
            f"{lane.tenant}/{lane.stream}",
            lane.next_seq,
            "" if lane.complete_up_to is None else timestamp(lane.complete_up_to),
            _runs(lane),
        )
        for lane in lanes
    ]
    print_table(("edge", "log id", "stream", "next seq", "complete up to", "lost"), rows)


def _runs(lane: LaneEnd) -> str:
    shown = ", ".join(f"{first} to {end - 1}" for first, end in lane.gone[:RUNS_SHOWN])
    more = len(lane.gone) - RUNS_SHOWN
    return f"{shown} and {more} more runs" if more > 0 else shown
