"""``weft hub drain``: have hub processes give their shards and edges to others, and wait until they have."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlencode

import click

from weft.commands.common import ExistingPath
from weft.commands.on_store.declaring import declare
from weft.commands.on_store.opening import by_option, no_other_author, on_store, reason_option
from weft.commands.running import RunningHub, hub_argument, names_a_config, running_hub
from weft.config.units import parse_duration_ns
from weft.output import Failed, Refused, counted
from weft.storage.object_store import ObjectStore
from weft.storage.presence.nodes import NodeEntry

LOOK_S = 1.0
DRAINS = "/v1/drains"


@click.command()
@hub_argument
@click.argument("node")
@click.option("--undo", is_flag=True, help="NODE takes shards and edges again.")
@click.option("--wait", default="60s", show_default=True, help="Longest wait until NODE has no edges; 0s: none.")
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with a token that has the grant nodes, "
              "for a URL or a login.")  # fmt: skip
@reason_option
@by_option
def drain(
    hub: str, node: str, *, undo: bool, wait: str, token_file: str | None, reason: str, by: str | None
) -> None:  # fmt: skip
    """Give shards and edges of NODE, a machine or a process as `weft hub nodes` shows it, to the others of HUB.

    HUB is a configuration on this machine, a URL or the name of a login.

    \b
    weft hub drain hub.yaml hub-2 --reason "new disks"

    The others load its shards, and its edges are sent on to them; each is without a hub for a moment. NODE goes on
    running and serves those that connect to it, until you stop it. The word holds after its restart, until `--undo`.
    """
    try:
        wait_s = parse_duration_ns(wait) / 1e9
    except ValueError as error:
        raise Refused(f"--wait: {error}") from None
    node = node.rstrip("/")
    if names_a_config(hub):
        links = _by_store(hub, node, by, reason, undo=undo)
    else:
        no_other_author(by)
        links = _by_hub(running_hub(hub, token_file), node, reason, undo=undo)
    if undo:
        click.echo(f"{node} takes shards again within some seconds")
        return
    deadline = time.monotonic() + wait_s
    while (left := links()) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    if left:
        are = f"{counted(left, 'link')} {'is' if left == 1 else 'are'}"
        click.echo(f"{node} is drained; {are} still there. Stop it when `weft hub nodes` shows none")
    else:
        click.echo(f"{node} is drained and has no links; stop it now, or let it take shards again: --undo")


def _by_store(config_file: str, node: str, by: str | None, reason: str, *, undo: bool) -> Callable[[], int]:
    """Declare it in the store. Return the look at the links that are left."""
    from weft.cloud_hub.declared import changes
    from weft.cloud_hub.declared.nodes import NoSuchNode, draining

    if undo:
        declare(config_file, lambda _now: changes.undo_drain(node), by, reason)
    else:
        try:
            _, decision = draining(_entries(config_file), node)
        except NoSuchNode as error:
            raise Failed(str(error)) from None
        declare(config_file, lambda _now: decision, by, reason)
    return lambda: sum(each.links for each in _entries(config_file) if node in (each.host, each.name))


def _by_hub(hub: RunningHub, node: str, reason: str, *, undo: bool) -> Callable[[], int]:
    """Ask a running hub for it. Return the look at the links that are left."""

    def links() -> int:
        there = hub.get("/v1/nodes")["nodes"]
        return sum(each["links"] for each in there if node in (each["host"], each["name"]))

    if undo:
        query = urlencode({"node": node, **({"reason": reason} if reason else {})})
        hub.request(f"{DRAINS}?{query}", method="DELETE")
    else:
        links()  # before anything is declared: a token that may not see the processes is refused here
        hub.request(DRAINS, {"node": node, "reason": reason})
    return links


def _entries(config_file: str) -> list[NodeEntry]:
    from weft.storage.presence.nodes import running

    async def work(store: ObjectStore) -> list[NodeEntry]:
        return await running(store, time.time_ns())

    return on_store(config_file, work)
