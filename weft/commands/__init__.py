"""Modules of the commands. A command or a group of them goes by a name of its own, so that modules can be merged."""

from __future__ import annotations

import importlib

import click


def command_at(place: str) -> click.Command:
    """Import the command at ``module:name``."""
    module, _, name = place.partition(":")
    command = getattr(importlib.import_module(module), name)
    assert isinstance(command, click.Command), place
    return command
