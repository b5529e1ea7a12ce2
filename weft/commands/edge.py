"""``weft edge``: run an edge node, check its configuration, ask how it is, look into its log."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import click

from edge_node.check import notes
from weft.commands import edge_query, edge_status, edge_tail
from weft.commands.common import config_argument, json_option, load_edge, log_level_option
from weft.log_format import log_to_stderr
from weft.output import counted, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from config.units import Address, UnixSocket
    from edge_node.node import EdgeNode
    from weft.reload import RunningSettings

_PROTOCOLS = ("mqtt", "mqtts", "ws", "wss")


@click.group("edge")
def command() -> None:
    """An edge node: takes messages from devices, keeps them on disk, sends them to hubs."""


@command.command()
@config_argument
@log_level_option
def run(config_file: str, log_level: str) -> None:
    """Run the node of CONFIG until SIGTERM or SIGINT."""
    from weft.serving import Signals, run_until_stopped, software

    config = load_edge(config_file)
    log_to_stderr(log_level)
    logging.getLogger("weft").info("%s starts with %s, process %d", software(), config_file, os.getpid())
    for note in notes(config):
        logging.getLogger("weft").warning("%s", note)
    from edge_node.node import EdgeNode
    from weft.reload import RunningSettings

    settings = RunningSettings(config_file, config, load_edge)

    async def serve(signals: Signals) -> None:
        node = EdgeNode(config, software())
        await node.start()
        try:
            click.echo(f"{config.tenant}/{config.node} is ready: {_addresses(node.listeners, node.http)}")
            async with signals.reloading(lambda: _reload(node, settings)):
                await node.run(signals.stop)
        finally:
            await node.close()

    run_until_stopped(serve)


async def _reload(node: EdgeNode, settings: RunningSettings) -> None:
    await node.reload()
    await settings.say_what_needs_a_restart()


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
    config = load_edge(config_file)
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


command.add_command(edge_status.command)
command.add_command(edge_tail.command)
command.add_command(edge_query.command)
