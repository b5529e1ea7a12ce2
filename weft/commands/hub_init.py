"""``weft hub init``: a first configuration of a hub, from options or answers."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import Any

import click

from weft.cloud_hub.check import check
from weft.commands.ca import CERTIFICATE_FILE, DAYS, LIST_FILE, Kind, issue
from weft.commands.common import json_option
from weft.commands.new_files import check_place, print_next, write_new
from weft.config.errors import ConfigError
from weft.config.load import parse
from weft.config.models import HubConfig
from weft.config.units import is_bucket, parse_bind
from weft.output import Refused

ADMIN_FILE = "admin.token"
LISTEN = "127.0.0.1:8090"
UNIT_FOLDER, UNIT_STORE = "/etc/weft", "/var/lib/weft-hub"
"""Folders of the configuration and of the store under systemd, where the hub runs as the user ``weft-hub``."""
_OPTIONS = {"listen": "--listen", "store": "--store", "tls": "--certificate"}
"""Section of the configuration -> option that it comes from."""


@click.command("init")
@click.argument("config_file", metavar="[CONFIG]", default="hub.yaml", type=click.Path(readable=False))
@click.option("--store", help="Folder or bucket of the hub, such as s3://bucket/prefix.")
@click.option("--listen", metavar="ADDRESS", help="Address and port for edges and readers, such as 0.0.0.0:8090.")
@click.option("--ca", metavar="FOLDER", help="Authority (`weft ca init`) that issues the hub's certificate.")
@click.option("--host", "hosts", multiple=True, help="Name by which edges call the hub, for --ca; repeatable.")
@click.option("--edge-certificates", is_flag=True, help="With --ca: accept edges with its certificates, too.")
@click.option("--certificate", metavar="FILE", help="Certificate of the hub that you have, with its chain.")
@click.option("--key", metavar="FILE", help="Key of that certificate.")
@click.option("--plain-http", is_flag=True, help="No TLS: only behind a proxy with TLS.")
@json_option
def hub_init(config_file: str, *, as_json: bool, **given: Any) -> None:
    """Write a first CONFIG (hub.yaml) of a hub, checked as at a start.

    At a terminal the command asks for options that are missing. The hub will require tokens: the output ends with the
    command that adds an administrator's. Nothing is overwritten, except the example of the Debian package while it is
    unchanged.

    \b
    weft hub init hub.yaml --store store
    weft ca init plant-ca
    weft hub init hub.yaml --store s3://plant/weft --listen 0.0.0.0:8090 --ca plant-ca --host hub.plant.example
    """
    _check_options(given)
    check_place(config_file, (ADMIN_FILE,), "hub.yaml")
    folder = os.path.dirname(config_file)
    is_unit = os.path.abspath(folder) == UNIT_FOLDER
    store = UNIT_STORE if is_unit else "store"
    if sys.stdin.isatty() and not as_json:
        ask(given, store)
    given["store"], given["listen"] = given["store"] or store, given["listen"] or LISTEN
    text = text_of(given)
    _check(text, config_file)
    written = _write(config_file, folder, text, given)
    _print_summary(written, config_file, given, is_unit=is_unit, as_json=as_json)


def text_of(given: dict[str, Any]) -> str:
    """Return the YAML. Each text of a person is quoted, so that it is a text whatever it contains."""
    lines = [
        "# Made by `weft hub init`. docs/reference/settings.md has all settings, `weft config schema hub` a schema.",
        f"listen: {json.dumps(given['listen'])}",
        f"store: {json.dumps(given['store'])}",
        "anonymous: never",
    ]
    certificate, key = ("hub.crt", "hub.key") if given["ca"] else (given["certificate"], given["key"])
    if certificate is not None:
        # The options name files from here, the configuration from its own folder.
        as_named = str if given["ca"] else os.path.abspath
        lines += ["tls:", f"  certificate: {json.dumps(as_named(certificate))}", f"  key: {json.dumps(as_named(key))}"]
    if given["edge_certificates"]:
        lines += [f"  client_ca: {CERTIFICATE_FILE}", f"  crl_file: {LIST_FILE}", "  client_certificate: optional"]
    if given["plain_http"]:
        lines.append("plain_http: allowed_beyond_loopback")
    return "\n".join(lines) + "\n"


def _check_options(given: dict[str, Any]) -> None:
    """Refuse options that do not fit each other."""
    ways = [
        name
        for name, is_given in (
            ("--ca", given["ca"]),
            ("--certificate", given["certificate"]),
            ("--plain-http", given["plain_http"]),
        )
        if is_given
    ]
    if len(ways) > 1:
        raise Refused(f"{' and '.join(ways)} exclude each other. Leave one out")
    if (given["certificate"] is None) != (given["key"] is None):
        raise Refused("a certificate and its key belong together. Give --certificate and --key")
    if bool(given["ca"]) != bool(given["hosts"]):
        raise Refused("the authority needs the names of the hub. Give --ca FOLDER and --host NAME")
    if given["edge_certificates"] and not given["ca"]:
        raise Refused("--edge-certificates needs --ca. With an authority elsewhere, set `tls.client_ca` yourself")


def ask(given: dict[str, Any], store: str) -> None:
    """Fill in what the options leave out. A wrong answer is asked for again."""
    if given["store"] is None:
        given["store"] = _asked(given, "store", "Store: a folder, or a bucket such as s3://bucket/prefix", store)
    if given["listen"] is None:
        given["listen"] = _asked(given, "listen", "Listen for edges and readers on", LISTEN)
    has_tls = given["ca"] or given["certificate"] or given["plain_http"]
    if not has_tls and not parse_bind(given["listen"]).is_loopback:
        given["ca"] = click.prompt("Folder of the authority for its certificate (`weft ca init` makes one)", err=True)
        hosts = click.prompt("Names by which edges call this hub, with spaces between them", err=True)
        given["hosts"] = tuple(hosts.split())


def _asked(given: dict[str, Any], name: str, question: str, default: str) -> str:
    """Return an answer with which a configuration would be valid."""

    def checked(text: str) -> str:
        # With TLS by assumption: it is asked for next.
        trial = {**given, "store": "store", "listen": LISTEN, name: text.strip(), "plain_http": True}
        try:
            _check(text_of(trial), "hub.yaml")
        except Refused as refused:
            raise click.UsageError(str(refused).partition(": ")[2] or str(refused)) from None
        return text.strip()

    answer: str = click.prompt(question, default=default, value_proc=checked, err=True)
    return answer


def _check(text: str, path: str) -> HubConfig:
    """Return the configuration in the text. ``Refused`` names options that are wrong."""
    try:
        return parse(text, path, HubConfig, check).config
    except ConfigError as error:
        findings = []
        for each in error.problems:
            message = each.message
            if each.path == ("listen",) and "clear text" in message:
                message = f"{message.partition('. ')[0]}. Give --ca, or --certificate and --key, or listen on 127.0.0.1"
            findings.append(f"{_OPTIONS.get(str(each.path[0]) if each.path else '', 'the configuration')}: {message}")
        raise Refused("\n".join(findings)) from None


def _write(config_file: str, folder: str, text: str, given: dict[str, Any]) -> list[str]:
    """Write everything, the configuration last: one that is there is whole."""
    issued: list[str] = []
    if given["ca"]:
        hosts = given["hosts"]
        issued = issue(given["ca"], Kind.HUB, hosts[0], hosts, folder or ".", days=DAYS, replaces=False)["written"]
    write_new({config_file: text.encode()}, replaced=config_file)
    return [*issued, config_file]


def _print_summary(
    written: list[str], config_file: str, given: dict[str, Any], *, is_unit: bool, as_json: bool
) -> None:
    prefix = "sudo -u weft-hub " if is_unit else ""
    file = shlex.quote(config_file)
    run = "sudo systemctl enable --now weft-hub" if is_unit else f"weft hub run {file}"
    offline = " --offline" if is_bucket(given["store"]) else ""
    admin = shlex.quote(os.path.join(os.path.dirname(config_file), ADMIN_FILE))
    commands = [
        f"{prefix}weft hub check {file}{offline}",
        f"{prefix}weft hub token add {file} admin --scope admin --to {admin}",
        run,
        f"{prefix}weft hub status {file} --token-file {admin}",
        f"{prefix}weft hub token pair {file} EDGE",
    ]
    print_next(written, commands, as_json=as_json)
