"""Files of a new node: written together or not at all, and over no other file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files

import click

from weft.commands.common import using
from weft.config.load import FILE_BYTES_MAX
from weft.edge_node.access import users
from weft.output import Failed, Refused, print_json
from weft.storage.filesystem import replace_private_file

IS_THERE = "{} already exists, and is not overwritten. Remove it, or choose another folder"


def check_user(name: str) -> None:
    """Refuse a name that a users file cannot hold."""
    try:
        users.check_name(name)
    except users.UsersUnusable as error:
        raise Refused(str(error)) from None


def user_line(name: str, password: bytes) -> bytes:
    """Return the users file of one user."""
    if not password or len(password) > users.PASSWORD_BYTES_MAX:
        raise Refused(f"expected a password of 1 to {users.PASSWORD_BYTES_MAX} bytes")
    return f"{name}:{users.hasher().hash(password)}\n".encode()


def may_be_replaced(path: str) -> bool:
    """Return whether ``path`` is the example that a Debian package put there, as it was."""
    examples = [files("weft.config").joinpath(f"examples/{each}-package.yaml").read_bytes() for each in ("edge", "hub")]
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with using(path), open(path, "rb") as file:
        return file.read(FILE_BYTES_MAX) in examples


def check_place(config_file: str, others: Collection[str], name: str) -> None:
    """Refuse a place where no new configuration can be, before anything is asked.

    Args:
        others: names of further files beside it.
        name: what a configuration is called, for the advice.
    """
    folder, base = os.path.split(os.path.abspath(config_file))
    if not os.path.isdir(folder):
        raise Failed(f"{config_file}: folder {folder} does not exist. Create it first")
    if base in others:
        raise Refused(f"{config_file}: this is the name of another file of the node. Name it {name}")
    if os.path.lexists(config_file) and not may_be_replaced(config_file):
        raise Refused(IS_THERE.format(config_file))


def print_next(written: Sequence[str], commands: Sequence[str], *, as_json: bool) -> None:
    """Say what was written, and the commands that come next."""
    if as_json:
        print_json({"written": written, "next": commands})
        return
    for path in written:
        click.echo(f"wrote {path}")
    click.echo("Next:")
    for each in commands:
        click.echo(f"  {each}")


def replace(contents: Mapping[str, bytes]) -> None:
    """Write files, each durably and in one step. One that is new is for its owner alone, others keep their modes."""
    for path, data in contents.items():
        with using(path):
            replace_private_file(path, data)


def write_new(contents: Mapping[str, bytes], *, replaced: str = "") -> None:
    """Write files, each durably and for its owner alone. An error leaves none behind.

    Args:
        replaced: the file that may be there as the package's example, which keeps its mode.
    """
    for path in contents:
        if os.path.lexists(path) and not (path == replaced and may_be_replaced(path)):
            raise Refused(IS_THERE.format(path))
    written: list[str] = []
    try:
        for path, data in contents.items():
            with using(path):
                replace_private_file(path, data)
            written.append(path)
    except BaseException:
        for path in written:
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise
