"""``weft edge``: run an edge node, check its configuration, ask how it is, look into its log."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import click

from edge_node.check import notes
from weft.commands import edge_query, edge_rename, edge_status, edge_tail
from weft.commands.common import config_argument, json_option, loaded_edge, log_level_option
from weft.output import Refused, counted, log_to_stderr, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from config.load import Loaded
    from config.models import EdgeConfig
    from config.units import Address, UnixSocket
    from protocols.lane import NodeName

_PROTOCOLS = ("mqtt", "mqtts", "ws", "wss")


@click.group("edge")
def command() -> None:
    """An edge node: takes messages from devices, keeps them on disk, sends them to hubs."""


@command.command()
@config_argument
@log_level_option
def run(config_file: str, log_level: str) -> None:
    """Run the node of CONFIG until SIGTERM or SIGINT."""
    loaded = loaded_edge(config_file)
    config = loaded.config
    log_to_stderr(log_level)
    for note in notes(config):
        logging.getLogger("weft").warning("%s", note)
    from edge_node.node import EdgeNode
    from storage.segment_log import WrongOwner
    from weft.serving import run_until_stopped, software

    async def serve(stop: asyncio.Event) -> None:
        node = EdgeNode(config, software())
        await node.start()
        try:
            click.echo(f"{config.tenant}/{config.node} is ready: {_addresses(node.listeners, node.http)}")
            await node.run(stop)
        finally:
            await node.close()

    try:
        run_until_stopped(serve)
    except WrongOwner as error:
        # As for any other mistake in the configuration: no restart mends it.
        _check_name(loaded, error.owner)
        raise


def _check_name(loaded: Loaded[EdgeConfig], owner: NodeName | None) -> None:
    """Refuse a configuration with another name than the log in its data_dir has."""
    from edge_node.log_owner import wrong_name

    finding = wrong_name(loaded.config, owner, loaded.file) if owner is not None else None
    if finding is not None:
        raise Refused(str(loaded.refuse([finding])))


def _addresses(listeners: Mapping[str, Address | UnixSocket], http: Address | None) -> str:
    known = [f"{name.upper() if name in _PROTOCOLS else name} at {address}" for name, address in listeners.items()]
    if http is not None:
        known.append(f"status at http://{http}/")
    return ", ".join(known) or "no listeners"


@command.command()
@config_argument
@json_option
def check(config_file: str, as_json: bool) -> None:
    """Check CONFIG without starting anything. Exit status 2 when it is wrong."""
    from edge_node.log_owner import owner_of

    loaded = loaded_edge(config_file)
    config = loaded.config
    _check_name(loaded, owner_of(config.data_dir))
    streams = {name: list(stream.from_) for name, stream in config.streams.items()}
    links = {name: list(link.to) for name, link in config.links.items()}
    if as_json:
        facts = {"node": config.node, "tenant": config.tenant, "streams": streams, "links": links}
        print_json({**facts, "notes": notes(config)})
    else:
        for note in notes(config):
            click.echo(f"note: {note}", err=True)
        sizes = f"{counted(len(streams), 'stream')}, {counted(len(links), 'link')}"
        click.echo(f"{config_file} is good: node {config.node}, {sizes}")


command.add_command(edge_rename.command)
command.add_command(edge_status.command)
command.add_command(edge_tail.command)
command.add_command(edge_query.command)
