"""Lines of acts on a file of one machine, such as users and tokens: ``FILE.acts`` beside it, one JSON object a line.

Orders to an edge node have theirs in ``orders.acts`` of its data_dir, in the same form.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from weft.commands.common import decided, user_name
from weft.output import Failed
from weft.storage.filesystem import append_private_line

# The author of an act: what this process claims to be.

ORIGIN_CHARACTERS = 256


class Decided(NamedTuple):
    """The person who decided, and why."""

    by: str | None
    """None: the user of this process."""
    reason: str


def origin() -> str:
    """Return user and machine of this process, and the user behind sudo. It is a claim: who may write to a store or a
    file can write any name into it."""
    behind = os.environ.get("SUDO_USER")
    text = f"{user_name()}@{platform.node()}" + (f" (sudo by {behind})" if behind else "")
    return "".join(each if each.isprintable() else "?" for each in text)[:ORIGIN_CHARACTERS]


def command_words() -> str:
    """Return the words of the running command, such as ``hub token add``."""
    context = click.get_current_context(silent=True)
    return "" if context is None else " ".join(context.command_path.split()[1:])


_NOT_THE_ACT = {"as_json", "by", "config_file", "token_file", "yes"}
"""Parameters of a command that do not change its act."""


def command_options() -> dict[str, Any]:
    """Return the options of the running command that say what it does, as JSON has them."""
    context = click.get_current_context(silent=True)
    given = {} if context is None else context.params
    wanted = {name: value for name, value in given.items() if name not in _NOT_THE_ACT and value is not None}
    found: dict[str, Any] = json.loads(json.dumps(wanted, default=str, sort_keys=True))
    return found


SUFFIX = ".acts"
BYTES_MAX = 64 << 20
"""Size from which on no line is added: some hundred thousand acts. An operator moves the file into an archive."""
ORDERS, ORDERS_BYTES_MAX = "orders", 1 << 20
"""Name of the file of orders to an edge node, and the size from which on it is kept as ``orders.acts.1``, and another
one begins: the last few thousand orders."""
TEXT_MAX = 500
decision_options = decided("recorded in FILE.acts")


@contextlib.contextmanager
def acting_on_file(path: str, target: str, decided: Decided) -> Iterator[None]:
    """Write a line to ``FILE.acts`` before a change of a file, and one with its end behind it. Both are durable.

    Raises:
        Failed: the file of lines cannot be written, or is too long. Nothing was changed.
        OSError: there is no folder, or no right to it.
    """
    by, reason = decided
    act_id = secrets.token_hex(8)

    def write(act: str, why: str) -> None:
        _append(path, act, act_id, target, Decided(by, why), BYTES_MAX)

    try:
        write("began", reason)
    except OverflowError:
        raise Failed(
            f"{path}{SUFFIX} has {BYTES_MAX >> 20} MiB, its limit: archive it and try again. Nothing was changed"
        ) from None
    try:
        yield
    except Exception as error:
        with contextlib.suppress(OSError, OverflowError):
            write("ended", f"failed: {error}")
        raise
    # The change is made: a disk that takes no line now leaves the first one, which says that it began.
    with contextlib.suppress(OSError, OverflowError):
        write("ended", "done")


@contextlib.contextmanager
def ordering(directory: str, target: str) -> Iterator[None]:
    """Write a line to ``orders.acts`` in the data_dir of an edge node before an order, and one with its end behind it.

    An order is given also if the disk takes no line: it may be what frees the disk. A warning then says so.
    """
    path, act_id = os.path.join(directory, ORDERS), secrets.token_hex(8)

    def write(act: str, why: str) -> None:
        try:
            if os.path.exists(path + SUFFIX) and os.path.getsize(path + SUFFIX) >= ORDERS_BYTES_MAX:
                os.replace(path + SUFFIX, f"{path}{SUFFIX}.1")
            _append(path, act, act_id, target, Decided(None, why), 2 * ORDERS_BYTES_MAX)
        except (OSError, OverflowError) as error:
            # Without the folder there is no node, and the command says so itself.
            if os.path.isdir(directory):
                click.echo(f"warning: the order has no line in {path}{SUFFIX}: {error}", err=True)

    write("began", "")
    try:
        yield
    except Exception as error:
        write("ended", f"failed: {error}")
        raise
    write("ended", "done")


def _append(path: str, act: str, act_id: str, target: str, decided: Decided, bytes_max: int) -> None:  # noqa: PLR0917
    by, reason = decided
    line = {
        "at": _moment(),
        "act": act,
        "id": act_id,
        "by": (by or origin())[:TEXT_MAX],
        "origin": origin(),
        "command": command_words(),
        "target": target[:TEXT_MAX],
        "reason": reason[:TEXT_MAX],
    }
    append_private_line(path + SUFFIX, json.dumps(line).encode() + b"\n", bytes_max)


def _moment() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
