"""``weft hub skip``: take records that cannot become rows out of a stream's table."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import click

from weft.commands.common import config_argument, confirm, yes_option
from weft.commands.on_store.opening import acting, by_option
from weft.output import Failed
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.cloud_hub.shard.lane_ends import Ending
    from weft.protocols.shard.shard_state import ShardState
    from weft.storage.chunk_log import ShardLog


@click.command()
@config_argument
@click.argument("stream")
@click.option("--tenant", default="default", show_default=True, help="Tenant of the stream.")
@click.option("--shard", type=click.IntRange(0), default=0, show_default=True, help="Shard of the offsets.")
@click.option("--from", "first", type=click.IntRange(0), required=True, help="First offset to skip.")
@click.option("--to", "end", type=click.IntRange(1), required=True, help="Offset after the last to skip.")
@click.option("--reason", required=True, help="Why, in a few words; recorded with the offsets.")
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

    The table goes on behind them, whether nodes run or not. The log keeps the records, and completeness and `weft
    audit` report them as skipped, with the reason. It cannot be reverted: records that are rows already stay rows, and
    the others never become rows.
    """
    from weft.cloud_hub.clock import sound_clock
    from weft.cloud_hub.shard import lane_ends, skips
    from weft.protocols.errors import CodecError
    from weft.storage.chunk_log import ShardLog, open_cluster

    async def work(store: ObjectStore) -> Ending:
        cluster = await open_cluster(store, None)
        if shard >= cluster.tree.count:
            raise Failed(f"--shard {shard}: the hub has shards 0 to {cluster.tree.count - 1}")
        log = ShardLog(store, cluster, shard)

        async def plan(state: ShardState) -> Ending:
            ending = await skips.skip(state, log, (tenant, stream), first, end, reason)
            if ending.controls:
                await _check_needed(store, log, (tenant, stream), end)
            return ending

        return await lane_ends.write_ending(
            log, plan, wall_clock=await sound_clock(store), random_bits=random.SystemRandom().getrandbits
        )

    if not yes:
        confirm(
            f"skip offsets {first} to {end - 1} of shard {shard} of {tenant}/{stream}? Records that are not rows yet "
            "never become rows",
            "nothing was skipped",
        )
    target = f"stream {tenant}/{stream}, shard {shard}, offsets {first} to {end - 1}"
    try:
        ending = acting(config_file, target, work, by, reason)
    except (skips.CannotSkip, CodecError) as error:
        raise Failed(str(error)) from None
    if ending.controls:
        click.echo(f"the table of {tenant}/{stream} skips offsets {first} to {end - 1} of shard {shard}: {reason}")
    else:
        click.echo(f"the table of {tenant}/{stream} skips offsets {first} to {end - 1} of shard {shard} already")


async def _check_needed(store: ObjectStore, log: ShardLog, stream: tuple[str, str], end: int) -> None:
    """Refuse to skip what the table has gone past: audit and completeness would call rows that are there skipped."""
    from weft.cloud_hub.shard import skips
    from weft.storage.table.errors import TableError
    from weft.storage.table_maker.tabled import table_position

    position = None
    with contextlib.suppress(TableError):  # what a table that cannot be read has is unknown
        position = await table_position(store, log, stream)
    if position is not None and end <= position:
        raise skips.CannotSkip(
            f"the table has all offsets of shard {log.shard} below {position}, so none of these stops it. "
            "`weft hub status` names those that do"
        )
