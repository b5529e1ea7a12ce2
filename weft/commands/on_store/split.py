"""``weft hub split``: a shard becomes two, whether nodes run or not."""

from __future__ import annotations

import random

import click

from weft.commands.common import config_argument, confirm, yes_option
from weft.commands.on_store.opening import acting, by_option, on_store, reason_option
from weft.output import Failed, counted
from weft.storage.object_store import ObjectStore


@click.command()
@config_argument
@click.argument("shard", type=int)
@click.option("--force", is_flag=True, help="Do it though all edges would be in one of the two shards.")
@reason_option
@by_option
@yes_option
def split(config_file: str, shard: int, *, force: bool, reason: str, by: str | None, yes: bool) -> None:
    """Split SHARD of the hub of CONFIG: about half of its edges move to a new shard.

    A shard has one writer, so a split lets a second process take half of the work. Links of the edges that move end,
    and open again within seconds at the new shard. Nothing is lost or doubled, and readers, tables and Spark queries go
    on. No other shard is touched. It cannot be reverted.

    An edge is in one shard as a whole: a split does not help a shard that is busy with one edge. The command needs
    level 3 (`weft hub finalize`).

    \b
    weft hub split hub.yaml 3
    """
    from weft.cloud_hub.clock import sound_clock
    from weft.cloud_hub.splits import declaring
    from weft.protocols.errors import CodecError
    from weft.storage.cluster import Cluster, open_cluster

    async def look(store: ObjectStore) -> tuple[Cluster, declaring.Parts]:
        cluster = await open_cluster(store, None)
        return cluster, await declaring.look(store, cluster, shard, force=force)

    try:
        cluster, parts = on_store(config_file, look)
        moves, stays = len(parts.moving), len(parts.staying)
        if not yes:
            confirm(f"split shard {shard}? {counted(moves, 'edge')} of {moves + stays} move", "nothing was split")

        async def work(store: ObjectStore) -> int:
            return await declaring.split(
                store, cluster, shard, wall_clock=await sound_clock(store),
                random_bits=random.SystemRandom().getrandbits,
            )  # fmt: skip

        new = acting(config_file, f"shard {shard}", work, by, reason)
    except (declaring.CannotSplit, CodecError) as error:
        raise Failed(str(error)) from None
    click.echo(f"shard {shard} is split: {counted(moves, 'edge')} moved to shard {new}, {stays} stay")
