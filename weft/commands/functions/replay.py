"""``weft edge replay``: compute a derived stream again."""

from __future__ import annotations

import time

import click

from weft.commands.acts.file_acts import ordering
from weft.commands.common import json_option
from weft.commands.node_log import NodeLog, target_argument
from weft.output import Failed, counted, print_json

POLL_S = 0.5


@click.command("replay")
@target_argument
@click.argument("stream")
@click.option("--into", required=True, metavar="NAME", help="Stream for the result.")
@json_option
def edge_replay(target: str, stream: str, *, into: str, as_json: bool) -> None:
    """Compute the derived STREAM of a running node, named by its CONFIG or its data_dir, again.

    Its functions read all of their inputs that the log still has, and write to another stream of this node, which no
    link carries. The same records get the same numbers each time: a second run resumes where the first one ended.
    Alerts and rows that functions route to other streams are left out.

    \b
    weft edge replay edge.yaml hot --into hot-again
    """
    from weft.edge_node.control.client import ControlFailed, ReplayRequest, ask_replay

    directory = NodeLog.of(target).directory
    try:
        with ordering(directory, f"stream {stream} into {into}"):
            reply = ask_replay(directory, ReplayRequest(into, stream))
        with click.progressbar(length=reply.left, label=f"{stream} into {into}", hidden=as_json) as bar:
            left = reply.left
            while reply.left:
                time.sleep(POLL_S)
                reply = ask_replay(directory, ReplayRequest(into))
                bar.update(left - reply.left)
                left = reply.left
    except ControlFailed as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json({"stream": stream, "into": into, "rows": reply.rows})
    else:
        click.echo(f"{into} has all records of the functions of {stream}; {counted(reply.rows, 'row')} read now")
