"""``weft edge init``: a first configuration, from options or answers."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from typing import Any, BinaryIO

import click

from weft.commands.common import json_option, using
from weft.commands.credentials.user import password_of, password_option
from weft.commands.set_up.asking import answers_of, ask
from weft.commands.set_up.edge_file import TOKEN_FILE, USERS_FILE, check_text, text_of
from weft.commands.set_up.new_files import check_place, check_user, say_next, user_line, write_new
from weft.network.token_file import TOKEN_BYTES_MAX, read_token, token_in
from weft.output import Refused

PASSWORD_FILE = "user.password"
UNIT_FOLDER = "/etc/weft"
"""Folder of the configuration under systemd, where the node runs as the user ``weft``."""
UNIT_DATA = "/var/lib/weft"
_STDIN = "<stdin>"


@click.command("init")
@click.argument("config_file", metavar="[CONFIG]", default="edge.yaml", type=click.Path(readable=False))
@click.option("--node", help="Name of the node and of its records.")
@click.option("--tenant", default="default", show_default=True, help="Tenant at the hub.")
@click.option("--stream", "streams", multiple=True, metavar="NAME=TOPIC", help="Stream and an MQTT filter; repeatable.")
@click.option("--listen", metavar="ADDRESS", help="Address and port for MQTT, such as 0.0.0.0:1883.")
@click.option("--user", help="Name with which devices log in.")
@password_option
@click.option("--generate-password", is_flag=True, help=f"Write a new password into {PASSWORD_FILE}, beside CONFIG.")
@click.option("--hub", metavar="URL", help="Hub to send to.")
@click.option("--token-file", metavar="FILE", help="File with the token for the hub, `-` for standard input.")
@click.option("--ca-file", metavar="FILE", help="Authorities that the hub is trusted by. Default: those of the system.")
@click.option("--data-dir", metavar="FOLDER", help="Folder of the node's log, relative to CONFIG.")
@click.option("--disk", metavar="SIZE", help="Maximum disk space of the log, such as 16GiB.")
@json_option
def edge_init(
    config_file: str, *, password_file: BinaryIO | None, generate_password: bool, token_file: str | None,
    as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Write a first CONFIG (edge.yaml) of an edge node, checked as at a start of the node.

    At a terminal the command asks for what no option says. Users and the token go into files beside CONFIG that only
    the owner of the folder may read. Nothing is overwritten, except the example of the Debian package while it is
    unchanged.

    \b
    weft edge init edge.yaml
    weft edge init edge.yaml --node press-7 --stream 'telemetry=plant/#' --hub https://hub.example.com \\
      --token-file press-7.token
    """
    _check_options(given["user"], password_file, generate_password, given["hub"], token_file)
    if given["ca_file"] is not None and given["hub"] is None:
        raise Refused("an authority needs a hub. Name its URL with --hub")
    check_place(config_file, (USERS_FILE, TOKEN_FILE, PASSWORD_FILE), "edge.yaml")
    asks = sys.stdin.isatty() and not as_json
    if asks:
        ask(given)
    if given["node"] is None:
        raise Refused("there is no terminal to ask on. Name the node with --node")
    token = _token(token_file, asks=asks and given["hub"] is not None)
    folder = os.path.dirname(config_file)
    is_unit = os.path.abspath(folder) == UNIT_FOLDER
    given["data_dir"] = given["data_dir"] or (UNIT_DATA if is_unit else "data")
    text = text_of(answers_of(given, has_token=token is not None))
    check_text(text, config_file)
    secret: dict[str, bytes] = {}
    if given["user"] is not None:
        check_user(given["user"])
        password = secrets.token_urlsafe(18).encode() if generate_password else password_of(password_file, confirm=True)
        secret[USERS_FILE] = user_line(given["user"], password)
        if generate_password:
            secret[PASSWORD_FILE] = password + b"\n"
    if token is not None:
        secret[TOKEN_FILE] = token.encode() + b"\n"
    # The configuration is last: one that is there is whole.
    contents = {os.path.join(folder, name): data for name, data in secret.items()} | {config_file: text.encode()}
    write_new(contents, replaced=config_file)
    _tell(list(contents), config_file, is_unit=is_unit, as_json=as_json)


def _check_options(
    user: str | None, password_file: BinaryIO | None, generate: bool, hub: str | None, token_file: str | None
) -> None:
    """Refuse options that do not fit each other."""
    if (password_file is not None or generate) and user is None:
        raise Refused("a password needs a user. Name one with --user")
    if password_file is not None and generate:
        raise Refused("--password-file and --generate-password exclude each other. Leave one out")
    if token_file is not None and hub is None:
        raise Refused("a token needs a hub. Name its URL with --hub")
    if token_file == "-" and password_file is not None and getattr(password_file, "name", _STDIN) == _STDIN:
        raise Refused("the token and the password cannot both come from standard input. Put one into a file")


def _token(path: str | None, *, asks: bool) -> str | None:
    """Return the token of a file or of standard input, or ask for one."""
    if path is None and not asks:
        return None
    try:
        if path is None:
            typed: str = click.prompt(
                "Token for the hub (Enter: none yet)", hide_input=True, default="", show_default=False
            )
            return token_in(typed.encode(), "the token") if typed else None
        if path == "-":
            return token_in(sys.stdin.buffer.read(TOKEN_BYTES_MAX + 1), "standard input")
        with using(path, makes="weft token add"):
            return read_token(path)
    except ValueError as error:
        raise Refused(str(error)) from None


def _tell(written: list[str], config_file: str, *, is_unit: bool, as_json: bool) -> None:
    """Say what was written, and the commands that come next."""
    prefix = "sudo -u weft " if is_unit else ""
    file = shlex.quote(config_file)
    run = "sudo systemctl enable --now weft-edge" if is_unit else f"weft edge run {file}"
    commands = [f"{prefix}weft edge check {file}", run, f"{prefix}weft edge doctor {file}"]
    say_next(written, commands, as_json=as_json)
