"""``weft link``: an operator's commands to the links of a running node."""

from __future__ import annotations

import click

from weft.commands.common import json_option
from weft.commands.node_log import NodeLog, target_argument
from weft.output import Failed, print_json


@click.group("link")
def command() -> None:
    """Handle the alarms of a node's links to hubs."""


@command.command()
@target_argument
@json_option
def acknowledge(target: str, *, as_json: bool) -> None:
    """End the alarms of a running node, named by its CONFIG or its data_dir.

    The alarm means that a hub lost records after acknowledging them: its store was restored to an earlier state, or
    lost objects. The alarm also ends by itself when the hub has the records again. The command goes through
    DATA_DIR/control.sock, from the node's own user or root.

    \b
    weft link acknowledge /var/lib/weft
    """
    from weft.edge_node.control.client import ControlFailed, ask_acknowledge

    try:
        ended = ask_acknowledge(NodeLog.of(target).directory)
    except ControlFailed as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json({"ended": ended})
        return
    for sentence in ended:
        click.echo(f"ended: {sentence}")
    if not ended:
        click.echo("there was no alarm")
