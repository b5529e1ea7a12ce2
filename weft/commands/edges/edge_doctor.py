"""``weft edge doctor``: what this machine, its disk, its clock and the way to the hubs are like."""

from __future__ import annotations

import time

import click

from weft.commands.check_answer import print_verdicts
from weft.commands.common import config_argument, json_option, located_edge


@click.command("doctor")
@config_argument
@json_option
def edge_doctor(config_file: str, *, as_json: bool) -> int:
    """Examine the machine of CONFIG: clock, disk, files, ports, certificates, and the way to each hub.

    Each line is `good`, `unknown` with the reason, or `act` with what to do. The command does what `weft edge check`
    does, measures the disk with at most 20 small syncs, and calls each hub. It asks for /readyz without a token, and a
    hub that is ready for /v1/whoami with the link's token. It is harmless beside the running node, whose links it asks
    for. Run it as the node's user. Exit status 1 if something is to be done.

    \b
    weft edge doctor edge.yaml
    """
    from weft.edge_node.preflight.doctor import examine
    from weft.service.serving import software

    loaded = located_edge(config_file)
    found = examine(loaded.config, loaded.lines, time.monotonic, time.time, software=software())
    return print_verdicts(config_file, found, as_json=as_json)
