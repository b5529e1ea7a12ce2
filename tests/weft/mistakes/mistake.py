"""One row of the table of mistakes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

EDGE = "edge.yaml"
HUB = "hub.yaml"
NODE = "node: press-shop-7\ndata_dir: data\n"
STREAM = (
    NODE + 'streams: {telemetry: {from: "plant/{line}/telemetry", retain: {time: 1d}}}\n' + "disk: {budget: 64MiB}\n"
)
QUIET = STREAM + "http: null\nlisteners: {mqtt: null}\n"
"""A node that listens nowhere."""


@dataclass(frozen=True)
class Mistake:
    """What a person did, and what the command says to it.

    ``<...>`` in files, commands and messages stands for a value of the run: ``<dir>`` for the folder of the mistake,
    ``<busy>`` for a port that is taken, others as ``surroundings`` names them.
    """

    did: str
    command: str
    message: str
    """All that is printed on standard error, or on standard output where that is empty."""
    exit_status: int = 2
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """What is in the folder: ``name@0600`` has that mode, ``name/`` is a folder."""
    given: str = ""
    """Standard input."""
    in_process: bool = False
    """Whether the command may run in the test's own process: it neither serves nor meets rights or a terminal."""
    needs: str = ""
    """A value of the run that some machines do not have; without it the row is skipped."""

    @property
    def arguments(self) -> list[str]:
        """The command as a shell splits it; placeholders may hold spaces."""
        return shlex.split(self.command)


def edge(text: str | bytes, **files: str | bytes) -> dict[str, str | bytes]:
    """An edge's configuration, and other files by their names."""
    return {EDGE: text, **files}


def hub(text: str | bytes, **files: str | bytes) -> dict[str, str | bytes]:
    """A hub's configuration, and other files by their names."""
    return {HUB: text, **files}
