"""``weft hub finalize``: what is done to a hub's cluster through its store, whether nodes run or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from weft.commands.common import config_argument, load_hub, open_hub_store, store_trouble
from weft.output import Failed
from weft.storage.object_store import ObjectStore

T = TypeVar("T")


def on_store(config_file: str, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
    """Run ``work`` with the store of a configuration, and tell its troubles."""
    from weft.storage.cluster import ClusterUnusable
    from weft.storage.object_store import StoreError

    uri = load_hub(config_file).store

    async def run() -> T:
        return await work(open_hub_store(uri))

    try:
        return asyncio.run(run())
    except ClusterUnusable as error:
        raise Failed(f"{uri}: {error}") from None
    except StoreError as error:
        raise Failed(f"{uri}: {store_trouble(uri, error)}") from None


@click.command()
@config_argument
def finalize(config_file: str) -> None:
    """Raise the level of the cluster of CONFIG to this release's, after all nodes run it.

    Nodes then write what earlier releases cannot read: there is no way back to those. The command refuses while a node
    of an earlier release runs, and names it.
    """
    from weft.cloud_hub import membership
    from weft.protocols.shard_state import LEVEL_MAX

    async def work(store: ObjectStore) -> tuple[int, int]:
        return await membership.finalize(store, LEVEL_MAX, time.time_ns())

    try:
        before, after = on_store(config_file, work)
    except membership.NotFinalized as error:
        raise Failed(str(error)) from None
    if before == after:
        click.echo(f"the cluster is at level {after} already, the level of this release")
    else:
        click.echo(f"the cluster is at level {after} now; it was at level {before}")
