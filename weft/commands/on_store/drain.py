"""``weft hub drain``: have hub processes give their shards and edges to others, and wait until they have."""

from __future__ import annotations

import time

import click

from weft.commands.common import config_argument
from weft.commands.on_store.declaring import declare
from weft.commands.on_store.opening import by_option, on_store, reason_option
from weft.config.units import parse_duration_ns
from weft.output import Failed, Refused, counted
from weft.storage.object_store import ObjectStore
from weft.storage.presence.nodes import NodeEntry

LOOK_S = 1.0


@click.command()
@config_argument
@click.argument("node")
@click.option("--undo", is_flag=True, help="NODE takes shards and edges again.")
@click.option("--wait", default="60s", show_default=True, help="Longest wait until NODE has no edges; 0s: none.")
@reason_option
@by_option
def drain(config_file: str, node: str, *, undo: bool, wait: str, reason: str, by: str | None) -> None:
    """Give shards and edges of NODE, a machine or a process as `weft hub nodes` shows it, to the others of CONFIG.

    \b
    weft hub drain hub.yaml hub-2 --reason "new disks"

    The others load its shards, and its edges are sent on to them; each is without a hub for a moment. NODE goes on
    running and serves those that connect to it, until you stop it. The word holds after its restart, until `--undo`.
    """
    from weft.cloud_hub.cluster.owners import LEAVING
    from weft.cloud_hub.declared import changes

    try:
        wait_s = parse_duration_ns(wait) / 1e9
    except ValueError as error:
        raise Refused(f"--wait: {error}") from None
    node = node.rstrip("/")
    if undo:
        declare(config_file, lambda _now: changes.undo_drain(node), by, reason)
        click.echo(f"{node} takes shards again within some seconds")
        return
    found = _entries(config_file)
    own = _of(found, node) or _of(found, node := node.rstrip("/"))
    if not own:
        names = sorted({each.host for each in found} | {each.name for each in found})
        raise Failed(f"no hub process {node} runs on this store; there are: {', '.join(names) or 'none'}")
    others = [(each.host, each.name) for each in found if each not in own and each.state != LEAVING]
    declare(config_file, lambda _now: changes.drain(node, others), by, reason)
    deadline = time.monotonic() + wait_s
    while own and sum(each.links for each in own) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        own = _of(_entries(config_file), node)
    if left := sum(each.links for each in own):
        are = f"{counted(left, 'link')} {'is' if left == 1 else 'are'}"
        click.echo(f"{node} is drained; {are} still there. Stop it when `weft hub nodes` shows none")
    else:
        click.echo(f"{node} is drained and has no links; stop it now, or let it take shards again: --undo")


def _entries(config_file: str) -> list[NodeEntry]:
    from weft.storage.presence.nodes import running

    async def work(store: ObjectStore) -> list[NodeEntry]:
        return await running(store, time.time_ns())

    return [each for each in on_store(config_file, work) if each.name]


def _of(entries: list[NodeEntry], node: str) -> list[NodeEntry]:
    return [each for each in entries if node in (each.host, each.name)]
