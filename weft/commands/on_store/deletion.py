"""``weft hub declare-deletion``: declare rows that are deleted from a table on purpose, for the audit."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from weft.commands.common import config_argument, confirm, user_name, yes_option
from weft.commands.on_store.opening import acting, on_store
from weft.output import Failed, Refused, counted
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.proofs.audit.deletions import Rows
    from weft.storage.table.deletions import Deletion

_MOMENT = click.DateTime(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d"])


@click.command("declare-deletion")
@config_argument
@click.argument("stream")
@click.option("--tenant", default="default", show_default=True, help="Tenant of the stream.")
@click.option("--key", help="Rows with this _key, the topic as a rule.")
@click.option("--edge", help="Rows of this edge.")
@click.option("--log", "log_id", metavar="ID", help="Rows of this log.")
@click.option("--from", "first", type=click.IntRange(0), help="First sequence number; needs --edge.")
@click.option("--to", "end", type=click.IntRange(1), help="Sequence number after the last; needs --edge.")
@click.option("--since", type=_MOMENT, help="First _time, UTC.")
@click.option("--until", type=_MOMENT, help="_time after the last, UTC.")
@click.option("--version", type=click.IntRange(0), help="Version of the table with the rows; the newest by default.")
@click.option("--by", help="Name of the person who decided; the user of this process by default.")
@click.option("--reason", required=True, help="Why, in a few words; recorded with the declaration.")
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
    from weft.proofs.audit.deletions import Rows

    rows = Rows(key, edge, log_id, first, end, _utc(since), _utc(until))
    if not rows.text:
        raise Refused("name the rows: --key, --edge, --log, --since or --until")
    if edge is None and (first is not None or end is not None):
        raise Refused("--from and --to are numbers of one edge's lane: give --edge too")
    deletion = _found(config_file, (tenant, stream), rows, version, by or user_name(), reason)
    if not deletion.count:
        raise Failed(f"version {deletion.version} of the table of {tenant}/{stream} has no such rows: {rows.text}")
    what = f"{counted(deletion.count, 'row')} of {tenant}/{stream} ({rows.text})"
    if not yes:
        confirm(f"declare {what} as deleted? The audit no longer calls them lost", "nothing was declared")
    # Without the rows' names: a line is kept for good, and they may be personal data.
    target = f"{counted(deletion.count, 'row')} of {tenant}/{stream}, as of version {deletion.version}"
    acting(config_file, target, lambda store: _declare(store, (tenant, stream), deletion), by, reason)
    click.echo(f"declared {what} as deleted, as of version {deletion.version}: {reason}")


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)


def _found(  # noqa: PLR0917 - what is declared, and by whom
    config_file: str, key: tuple[str, str], rows: Rows, version: int | None, by: str, reason: str
) -> Deletion:
    from weft.proofs.audit.deletions import find_rows, stored
    from weft.storage.object_store import StoreUnfit
    from weft.storage.table.deletions import FORMAT, Deletion
    from weft.storage.table.errors import TableError

    async def work(store: ObjectStore) -> Deletion:
        found, lanes, offsets = await find_rows(store, *key, rows, version)
        shards = [(shard, list(held)) for shard, held in sorted(offsets.held.items())]
        return Deletion(FORMAT, time.time_ns(), by, reason, rows.text, found, stored(lanes), shards)

    try:
        return on_store(config_file, work)
    except (TableError, StoreUnfit) as error:
        raise Failed(str(error)) from None


async def _declare(store: ObjectStore, key: tuple[str, str], deletion: Deletion) -> None:
    from weft.storage.table.deletions import declare

    await declare(store, *key, deletion)
