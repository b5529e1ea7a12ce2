"""Problems of a configuration file, worded for the person who wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

KeyPath = tuple[str | int, ...]
"""Keys as written in the file, list positions as numbers: ``("streams", "telemetry", "from", 0)``."""


class Finding(NamedTuple):
    """A problem with the value at ``path``: what was expected and what was found."""

    path: KeyPath
    message: str


class Problem(NamedTuple):
    """A finding with its file and line."""

    file: str
    line: int
    path: KeyPath
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {format_path(self.path)}: {self.message}" if self.path else f"{place}: {self.message}"


class ConfigError(Exception):
    """A configuration that cannot be used. ``problems`` are in the order of the file; there is at least one."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: problem.line)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @property
    def first(self) -> str:
        """Return the first problem, and how many more there are."""
        more = len(self.problems) - 1
        return f"{self.problems[0]}" + (f" (and {more} more)" if more else "")


class SettingError(OSError):
    """A valid value that cannot be used on this machine now."""

    def __init__(self, path: KeyPath, message: str) -> None:
        self.finding = Finding(path, message)
        super().__init__(f"{format_path(path)}: {message}")


def format_path(path: KeyPath) -> str:
    """Return a key path as text: ``streams.telemetry.from[0]``."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text
