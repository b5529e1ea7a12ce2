"""``weft hub split``: a shard becomes two, whether nodes run or not."""

from __future__ import annotations

import random
from typing import Any

import click

from weft.commands.common import ExistingPath, confirm, yes_option
from weft.commands.on_store.opening import acting, by_option, no_other_author, on_store, reason_option
from weft.commands.running import hub_argument, names_a_config, running_hub
from weft.output import Failed, counted
from weft.storage.object_store import ObjectStore

SPLITS = "/v1/splits"


@click.command()
@hub_argument
@click.argument("shard", type=click.IntRange(0))
@click.option("--force", is_flag=True, help="Do it though all edges would be in one of the two shards.")
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with a token that has the grant nodes, "
              "for a URL or a login.")  # fmt: skip
@reason_option
@by_option
@yes_option
def split(
    hub: str, shard: int, *, force: bool, token_file: str | None, reason: str, by: str | None, yes: bool
) -> None:  # fmt: skip
    """Split SHARD of HUB: about half of its edges move to a new shard.

    HUB is a configuration on this machine, a URL or the name of a login. With a configuration, the store is written,
    whether hubs run or not.

    A shard has one writer, so a split lets a second process take half of the work. Links of the edges that move end,
    and open again within seconds at the new shard. Nothing is lost or doubled, and readers, tables and Spark queries go
    on. No other shard is touched. It cannot be reverted.

    An edge is in one shard as a whole: a split does not help a shard that is busy with one edge. The command needs
    level 3 (`weft hub finalize`).

    \b
    weft hub split hub.yaml 3
    """
    if names_a_config(hub):
        done = _by_store(hub, shard, by, reason, force=force, yes=yes)
    else:
        no_other_author(by)
        running = running_hub(hub, token_file)
        if not yes:
            _confirm(shard, **running.get(f"{SPLITS}?shard={shard}"))
        done = running.request(SPLITS, {"shard": shard, "force": force, "reason": reason})
    click.echo(
        f"shard {shard} is split: {counted(done['moved'], 'edge')} moved to shard {done['new_shard']}, "
        f"{done['stayed']} stay"
    )


def _confirm(shard: int, *, moving: int, staying: int, **_: Any) -> None:
    confirm(f"split shard {shard}? {counted(moving, 'edge')} of {moving + staying} move", "nothing was split")


def _by_store(
    config_file: str, shard: int, by: str | None, reason: str, *, force: bool, yes: bool
) -> dict[str, int]:  # fmt: skip
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
            _confirm(shard, moving=moves, staying=stays)

        async def work(store: ObjectStore) -> int:
            return await declaring.split(
                store, cluster, shard, wall_clock=await sound_clock(store),
                random_bits=random.SystemRandom().getrandbits,
            )  # fmt: skip

        new = acting(config_file, f"shard {shard}", work, by, reason)
    except (declaring.CannotSplit, CodecError) as error:
        raise Failed(str(error)) from None
    return {"moved": moves, "stayed": stays, "new_shard": new}
