"""The users file: one line ``name:hash`` for each user, with an argon2id hash (RFC 9106).

Mosquitto writes its ``password_file`` in this form with argon2id. Comments and empty lines stay where they are.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from weft.storage.filesystem import FileSystem, OSFileSystem, replace_private_file

if TYPE_CHECKING:
    from argon2 import PasswordHasher

MEMORY_KIB_MAX = 256 << 10
TIME_COST_MAX = 32
"""Bound on the cost of a hash, which any client can make the node compute."""
NAME_CHARACTERS_MAX = 256
PASSWORD_BYTES_MAX = 1024
USERS_MAX = 100_000
FILE_BYTES_MAX = 64 << 20


class UsersUnusable(ValueError):
    """A users file that is not valid, or cannot be changed as requested. The text has the place and the reason."""


# The library is imported for the first hash: it takes half a megabyte, which a node without a users file saves.


@functools.cache
def hasher() -> PasswordHasher:
    """Return the hasher, with 19 MiB, two passes, one lane: the minimum that OWASP recommends, as a Raspberry Pi must
    check many devices at once."""
    from argon2 import PasswordHasher, Type

    return PasswordHasher(time_cost=2, memory_cost=19 << 10, parallelism=1, type=Type.ID)


def verify(hashed: str, password: bytes) -> bool:
    """Return whether a password has this hash. Slow on purpose; releases the interpreter lock."""
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        return hasher().verify(hashed, password)
    except (VerificationError, InvalidHashError):
        return False


def _is_good_hash(hashed: str) -> bool:
    from argon2 import Type, extract_parameters
    from argon2.exceptions import InvalidHashError

    try:
        parameters = extract_parameters(hashed)
    except InvalidHashError:
        return False
    costs = parameters.memory_cost <= MEMORY_KIB_MAX and parameters.time_cost <= TIME_COST_MAX
    return parameters.type is Type.ID and costs


# The file.


def parse(text: str, path: str) -> dict[str, str]:
    """Return name -> hash of a users file.

    Raises:
        UsersUnusable: a line is not ``name:hash``, a name comes twice, or a hash is not argon2id's.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, colon, hashed = line.strip().partition(":")
        if not name or name.startswith("#"):
            continue
        problem = None
        if not colon or not _is_good_hash(hashed):
            problem = "expected name:hash with an argon2id hash that `weft user add` makes"
        elif name in users:
            problem = f"user {name!r} already exists"
        if problem:
            raise UsersUnusable(f"{path}:{number}: {problem}")  # without the line: it may hold a password
        users[name] = hashed
    if len(users) > USERS_MAX:
        raise UsersUnusable(f"{path}: {len(users)} users, at most {USERS_MAX} are read")
    return users


def read(path: str, filesystem: FileSystem | None = None) -> dict[str, str]:
    """Read a users file.

    Raises:
        UsersUnusable, OSError: it is not valid, or cannot be read.
    """
    filesystem = filesystem or OSFileSystem()
    if filesystem.size(path) > FILE_BYTES_MAX:
        raise UsersUnusable(f"{path}: longer than {FILE_BYTES_MAX} bytes")
    return parse(_text(filesystem.read(path), path), path)


def add(path: str, name: str, password: bytes) -> bool:
    """Add a user to a file (created if missing, for its owner alone), or give a user a new password; durably.

    Returns:
        Whether the user is new.

    Raises:
        UsersUnusable: the file is not valid, or the name or password cannot be used.
        OSError: the file cannot be written.
    """
    check_name(name)
    if not password or len(password) > PASSWORD_BYTES_MAX:
        raise UsersUnusable(f"expected a password of 1 to {PASSWORD_BYTES_MAX} bytes")
    lines = _lines(path) if os.path.exists(path) else []
    line = f"{name}:{hasher().hash(password)}"
    places = [at for at, each in enumerate(lines) if _name(each) == name]
    if places:
        lines[places[0]] = line
    else:
        lines.append(line)
    _write(path, lines)
    return not places


def remove(path: str, name: str) -> None:
    """Remove a user from a file, durably.

    Raises:
        UsersUnusable: the file is not valid, or has no such user.
        OSError: the file cannot be read or written.
    """
    lines = _lines(path)
    kept = [line for line in lines if _name(line) != name]
    if len(kept) == len(lines):
        raise UsersUnusable(f"{path}: there is no user {name!r}")
    _write(path, kept)


def check_name(name: str) -> None:
    """Refuse a name that a users file cannot hold, or that no access pattern could use.

    Raises:
        UsersUnusable: the text states the problem.
    """
    if not name or len(name) > NAME_CHARACTERS_MAX or name != name.strip() or not name.isprintable():
        raise UsersUnusable(f"expected a name of 1 to {NAME_CHARACTERS_MAX} printable characters, got {name[:80]!r}")
    if ":" in name or name.startswith("#"):
        raise UsersUnusable(f"a name has no colon and does not begin with '#', got {name!r}")


def _lines(path: str) -> list[str]:
    text = _text(OSFileSystem().read(path), path)
    parse(text, path)
    return text.splitlines()


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsersUnusable(f"{path}: expected UTF-8 text") from None


def _name(line: str) -> str:
    return "" if line.strip().startswith("#") else line.strip().partition(":")[0]


def _write(path: str, lines: list[str]) -> None:
    replace_private_file(path, "".join(f"{line}\n" for line in lines).encode())
