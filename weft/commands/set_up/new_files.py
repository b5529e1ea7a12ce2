"""Files of a new node: written together or not at all, and over no other file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from importlib.resources import files

from weft.commands.common import using
from weft.config.load import FILE_BYTES_MAX
from weft.edge_node.access import users
from weft.output import Refused
from weft.storage.private_file import replace_private_file

IS_THERE = "{} is there already, and is not overwritten. Remove it, or choose another folder"


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
    return f"{name}:{users.HASHER.hash(password)}\n".encode()


def may_be_replaced(path: str) -> bool:
    """Return whether ``path`` is the example that the Debian package put there, as it was."""
    example = files("weft.config").joinpath("examples/edge-package.yaml").read_bytes()
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with using(path), open(path, "rb") as file:
        return file.read(FILE_BYTES_MAX) == example


def write_new(contents: Mapping[str, bytes], *, replaced: str) -> None:
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
