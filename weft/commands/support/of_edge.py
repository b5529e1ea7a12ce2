"""``weft edge support-bundle``."""

from __future__ import annotations

import os

import click

from weft.commands.common import config_argument, json_option, load_edge
from weft.commands.support.bundle import Bundle
from weft.output import Failed, print_json

bundle_file_option = click.option(
    "--to", default="weft-support.tar.gz", show_default=True, metavar="FILE", help="Archive to write, new."
)
log_file_option = click.option("--log", "log_file", metavar="FILE", help="Log of the node, where no journal has it.")


@click.command("support-bundle")
@config_argument
@bundle_file_option
@log_file_option
@json_option
def edge_support_bundle(config_file: str, *, to: str, log_file: str | None, as_json: bool) -> None:
    """Write an archive for those who help: state, versions, settings, log, metrics, and what the doctor finds.

    Tokens, passwords, their hashes and keys are taken out. They are found in files that CONFIG names, in variables of
    the environment, and by their form. Names, topics and addresses stay. Payloads are not in it. Look into the archive
    before you send it.

    \b
    weft edge support-bundle edge.yaml --to press-7.tar.gz
    """
    config = load_edge(config_file)
    bundle = Bundle(config, os.environ)
    bundle.add_command("status.json", "edge", "status", config_file, "--json")
    bundle.add_command("doctor.json", "edge", "doctor", config_file, "--json")
    bundle.add_command("check.json", "edge", "check", config_file, "--json")
    bundle.add_command("links.json", "link", "status", config_file, "--json")
    bundle.add_log("weft-edge", log_file)
    if config.http is None:
        bundle.missing["metrics.txt"] = "the node has no `http`"
    else:
        add_metrics(bundle, config.http.bind, None, None)
    tell(bundle, to, as_json=as_json)


def add_metrics(bundle: Bundle, bind: str, token_file: str | None, certificate: str | None) -> None:
    """Add the metrics of a running node of this machine."""
    from weft.client import Client, HubRefusal, HubUnreachable
    from weft.commands.common import tls_of
    from weft.config.units import parse_bind

    url = f"{'http' if certificate is None else 'https'}://{parse_bind(bind).from_here}"
    try:
        client = Client(url, token_file=token_file, tls=tls_of(certificate), timeout_s=10.0, bytes_max=16 << 20)
        bundle.add("metrics.txt", client.fetch("/metrics").body.decode("utf-8", "replace"))
    except (HubRefusal, HubUnreachable, OSError, ValueError) as error:
        bundle.missing["metrics.txt"] = str(error)


def tell(bundle: Bundle, to: str, *, as_json: bool) -> None:
    """Write the archive, and say what is in it."""
    if os.path.lexists(to):
        raise Failed(f"{to} is there already. Name another file with --to")
    bundle.write(to)
    if as_json:
        print_json({"file": to, "parts": sorted(bundle.parts), "missing": bundle.missing})
        return
    click.echo(f"wrote {to}: {', '.join(sorted(bundle.parts))}")
    for name, why in sorted(bundle.missing.items()):
        click.echo(f"without {name}: {why}", err=True)
