"""``weft hub support-bundle``."""

from __future__ import annotations

import os

import click

from weft.commands.common import ExistingPath, certificate_of, config_argument, json_option, load_hub
from weft.commands.support.bundle import Bundle
from weft.commands.support.of_edge import add_metrics, bundle_file_option, log_file_option, tell


@click.command("support-bundle")
@config_argument
@bundle_file_option
@log_file_option
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with an admin token.")
@json_option
def hub_support_bundle(
    config_file: str, *, to: str, log_file: str | None, token_file: str | None, as_json: bool
) -> None:
    """Write an archive for those who help: state, versions, settings, log, metrics, and what the doctor finds.

    Secrets are taken out as by `weft edge support-bundle`. A hub with tokens tells its state and metrics only with an
    admin token. Look into the archive before you send it.

    \b
    weft hub support-bundle hub.yaml --token-file admin.token
    """
    config = load_hub(config_file)
    bundle = Bundle(config, os.environ)
    with_token = () if token_file is None else ("--token-file", token_file)
    bundle.add_command("status.json", "hub", "status", config_file, "--json", *with_token)
    bundle.add_command("nodes.json", "hub", "nodes", config_file, "--json")
    bundle.add_command("doctor.json", "hub", "doctor", config_file, "--json")
    bundle.add_command("check.json", "hub", "check", config_file, "--json", "--offline")
    bundle.add_log("weft-hub", log_file)
    add_metrics(bundle, config.listen, token_file, certificate_of(config))
    tell(bundle, to, as_json=as_json)
