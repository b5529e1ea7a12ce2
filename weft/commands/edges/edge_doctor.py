"""``weft edge doctor``: what this machine, its disk, its clock and the way to the hubs are like."""

from __future__ import annotations

import time

import click

from weft.commands.common import config_argument, json_option, located_edge
from weft.output import FAILURE_EXIT_CODE, counted, harmless, print_json


@click.command("doctor")
@config_argument
@json_option
def command(config_file: str, *, as_json: bool) -> int:
    """Examine the machine of CONFIG: clock, disk, files, ports, certificates, and the way to each hub.

    Each line is `good`, `unknown` with the reason, or `act` with what to do. The command does what `weft edge check`
    does, measures the disk with at most 20 small syncs, and calls each hub's /readyz without a token. It is harmless
    beside the running node, whose links it asks for. Run it as the node's user. Exit status 1 if something is to be
    done.

    \b
    weft edge doctor edge.yaml
    """
    from weft.edge_node.preflight.doctor import examine, is_well

    loaded = located_edge(config_file)
    verdicts = []
    for verdict in examine(loaded.config, loaded.lines, time.monotonic, time.time):
        verdicts.append(verdict)
        if not as_json:
            click.echo(harmless(f"{verdict.state:<8} {verdict.check}: {verdict.says}"))
    well = is_well(verdicts)
    if as_json:
        print_json({"file": config_file, "good": well, "lines": [each._asdict() for each in verdicts]})
    elif not well:
        click.echo(f"{counted(sum(each.state == 'act' for each in verdicts), 'line')} to act on", err=True)
    return 0 if well else FAILURE_EXIT_CODE
