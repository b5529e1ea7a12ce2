"""``weft user``: users of an edge node, in a file; and ``weft hub whoami``: the rights of a token."""

from __future__ import annotations

import getpass
import warnings
from typing import TYPE_CHECKING, BinaryIO

import click

from weft.commands.acts import Decided, acting_on_file, decision_options
from weft.commands.common import (
    ExistingPath,
    json_option,
    using,
)
from weft.commands.running import any_hub_argument, running_hub
from weft.edge_node.access import users
from weft.output import Failed, Refused, harmless, print_facts, print_json

if TYPE_CHECKING:
    pass


@click.command()
@any_hub_argument
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with a token of any scope.")
@json_option
def whoami(hub: str | None, *, token_file: str | None, as_json: bool) -> None:
    """Show the rights of a token, or of a login's certificate, at the running hub HUB: name, scope, tenant and end.

    \b
    weft hub whoami hub.yaml --token-file press-7.token
    """
    facts = running_hub(hub, token_file).get("/v1/whoami")
    if as_json:
        print_json(facts)
        return
    no_token = "none: the hub has no tokens" if facts.get("certificate") is None else "none"
    without = {"token": no_token, "certificate": "none", "edge": "none", "until": "none", "rights": "all"}
    told = {name: " ".join(value) if isinstance(value, list) else value for name, value in facts.items()}
    print_facts({name: harmless(str(value or without.get(name, ""))) for name, value in told.items()})


# ``weft user``: manage the user names and passwords of an edge node's MQTT clients.

PASSWORD_FILE_BYTES_MAX = 4096

users_file_option = click.option(
    "--file",
    "path",
    required=True,
    type=click.Path(dir_okay=False, readable=False),
    help="The node's auth.users_file.",
)
password_option = click.option(
    "--password-file",
    type=click.File("rb"),
    help="File with the password on its first line, `-` for standard input. Without it, the command asks.",
)


@click.command("add")
@click.argument("name")
@users_file_option
@password_option
@decision_options
def add_user(name: str, path: str, password_file: BinaryIO | None, *, reason: str, by: str | None) -> None:
    """Add NAME to the file, which is created if it is missing, or give NAME a new password."""

    try:
        users.check_name(name)
        password = password_of(password_file, confirm=True)
        with using(path), acting_on_file(path, f"user {name}", Decided(by, reason)):
            is_new = users.add(path, name, password)
    except users.UsersUnusable as error:
        raise Refused(str(error)) from None
    click.echo(f"added {name}" if is_new else f"{name} has a new password")


@click.command("remove")
@click.argument("name")
@users_file_option
@decision_options
def remove_user(name: str, path: str, *, reason: str, by: str | None) -> None:
    """Remove NAME from the file. A running node disconnects the clients that use this name."""

    try:
        with using(path, makes="weft user add"), acting_on_file(path, f"user {name}", Decided(by, reason)):
            users.remove(path, name)
    except users.UsersUnusable as error:
        raise Refused(str(error)) from None
    click.echo(f"removed {name}")


@click.command("list")
@users_file_option
@json_option
def list_users(path: str, as_json: bool) -> None:
    """List the names in the file."""
    names = list(_read(path))
    if as_json:
        print_json(names)
        return
    for name in names:
        click.echo(name)


@click.command()
@click.argument("name")
@users_file_option
@password_option
def check(name: str, path: str, password_file: BinaryIO | None) -> None:
    """Check the password of NAME. Exit status 1 if it is wrong."""

    hashed = _read(path).get(name)
    if hashed is None:
        raise Failed(f"{path}: there is no user {name!r}")
    if not users.verify(hashed, password_of(password_file, confirm=False)):
        raise Failed(f"that is not the password of {name}")
    click.echo(f"that is the password of {name}")


def _read(path: str) -> dict[str, str]:

    try:
        with using(path, makes="weft user add"):
            return users.read(path)
    except users.UsersUnusable as error:
        raise Refused(str(error)) from None


def password_of(file: BinaryIO | None, *, confirm: bool) -> bytes:
    """Return the password on the first line of a file, or ask for it at the terminal."""
    if file is None:
        return _asked(confirm=confirm)
    line: bytes = file.readline(PASSWORD_FILE_BYTES_MAX)
    return line.rstrip(b"\r\n")


def _asked(*, confirm: bool) -> bytes:
    """Ask for a password at the terminal. Refuse without a terminal: the password would be read from a pipe by mistake,
    or shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            asked: str = click.prompt("Password", hide_input=True, confirmation_prompt=confirm)
        except getpass.GetPassWarning:
            raise Refused(
                "there is no terminal to ask for the password on. Give it with --password-file FILE, or "
                "--password-file - for standard input"
            ) from None
    return asked.encode()
