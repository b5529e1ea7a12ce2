"""``weft user``: manage the user names and passwords of an edge node's MQTT clients."""

from __future__ import annotations

import getpass
import warnings
from typing import BinaryIO

import click

from weft.commands.acts.authors import Decided
from weft.commands.acts.file_acts import acting_on_file, by_option, reason_option
from weft.commands.common import json_option, using
from weft.output import Failed, Refused, print_json

PASSWORD_FILE_BYTES_MAX = 4096

file_option = click.option(
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


@click.group("user")
def user_group() -> None:
    """Manage the user names and passwords of MQTT clients.

    The users file holds only argon2id hashes. A running node picks up changes by itself. The commands ask for passwords
    or read them from a file: other users of the machine could see a command line.
    """


@user_group.command("add")
@click.argument("name")
@file_option
@password_option
@reason_option
@by_option
def add_user(name: str, path: str, password_file: BinaryIO | None, *, reason: str, by: str | None) -> None:
    """Add NAME to the file, which is created if it is missing, or give NAME a new password."""
    from weft.edge_node.access import users

    try:
        users.check_name(name)
        password = password_of(password_file, confirm=True)
        with using(path), acting_on_file(path, f"user {name}", Decided(by, reason)):
            is_new = users.add(path, name, password)
    except users.UsersUnusable as error:
        raise Refused(str(error)) from None
    click.echo(f"added {name}" if is_new else f"{name} has a new password")


@user_group.command("remove")
@click.argument("name")
@file_option
@reason_option
@by_option
def remove_user(name: str, path: str, *, reason: str, by: str | None) -> None:
    """Remove NAME from the file. A running node disconnects the clients that use this name."""
    from weft.edge_node.access import users

    try:
        with using(path, makes="weft user add"), acting_on_file(path, f"user {name}", Decided(by, reason)):
            users.remove(path, name)
    except users.UsersUnusable as error:
        raise Refused(str(error)) from None
    click.echo(f"removed {name}")


@user_group.command("list")
@file_option
@json_option
def list_users(path: str, as_json: bool) -> None:
    """List the names in the file."""
    names = list(_read(path))
    if as_json:
        print_json(names)
        return
    for name in names:
        click.echo(name)


@user_group.command()
@click.argument("name")
@file_option
@password_option
def check(name: str, path: str, password_file: BinaryIO | None) -> None:
    """Check the password of NAME. Exit status 1 if it is wrong."""
    from weft.edge_node.access import users

    hashed = _read(path).get(name)
    if hashed is None:
        raise Failed(f"{path}: there is no user {name!r}")
    if not users.verify(hashed, password_of(password_file, confirm=False)):
        raise Failed(f"that is not the password of {name}")
    click.echo(f"that is the password of {name}")


def _read(path: str) -> dict[str, str]:
    from weft.edge_node.access import users

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
