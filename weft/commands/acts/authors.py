"""The author of an act: what this process claims to be."""

from __future__ import annotations

import json
import os
import platform
from typing import Any, NamedTuple

import click

from weft.commands.common import user_name

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
