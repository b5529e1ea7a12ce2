"""``weft hub doctor``: what this machine, its store, its clock and its ports are like."""

from __future__ import annotations

import time

import click

from weft.commands.check_answer import print_verdicts
from weft.commands.common import config_argument, json_option, load_hub


@click.command("doctor")
@config_argument
@json_option
def hub_doctor(config_file: str, *, as_json: bool) -> int:
    """Examine the machine of CONFIG: clock, disk or bucket, files, ports, certificates, names, and releases.

    Each line is `good`, `unknown` with the reason, or `act` with what to do. The command does what `weft hub check`
    does, and writes eight small objects below `probe/`, which it deletes again. It is harmless beside the running hub,
    whose /readyz it asks. Run it as the hub's user, with its environment. Exit status 1 if something is to be done.

    \b
    weft hub doctor hub.yaml
    """
    from weft.cloud_hub.checks.doctor import examine

    return print_verdicts(config_file, examine(load_hub(config_file), time.monotonic, time.time), as_json=as_json)
