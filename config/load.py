"""Loader of a YAML file into a checked model. Every error names file, line, path, what was expected and what was
found."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import yaml

from weft.config.errors import ConfigError, Finding, KeyPath, Problem
from weft.config.fields import model_shape
from weft.config.machine import why_unreadable
from weft.config.reading.reader import INVALID, YamlReader
from weft.config.reading.yaml_words import explained

FILE_BYTES_MAX = 1 << 20
"""Maximum size of a configuration file."""
PROBLEMS_MAX = 20
"""Maximum number of problems reported at once."""
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks of UTF-16, which some editors call Unicode."""

Config = TypeVar("Config", bound=msgspec.Struct)


@dataclass(frozen=True)
class Loaded(Generic[Config]):
    """A model, and the places of its values in the file."""

    config: Config
    file: str
    lines: dict[KeyPath, int]

    def refuse(self, findings: Sequence[Finding]) -> ConfigError:
        """Return the error for findings of later checks. A finding about a section that is not in the file has no
        line."""
        problems = _error(self.file, self.lines, findings).problems
        return ConfigError([each if each.path[:1] in self.lines else each._replace(line=0) for each in problems])

    def with_default(self, finding: Finding) -> Finding:
        """Return a finding about a value; its message says so when the value is a default, which no line of the file
        has."""
        if finding.path in self.lines:
            return finding
        return finding._replace(message=f"its default cannot be used: {finding.message}")


def load(
    path: str,
    model: type[Config],
    check: Callable[[Config], Sequence[Finding]] | None = None,
    settings: Sequence[str] = (),
    *,
    overlays: Sequence[str] = (),
) -> Loaded[Config]:
    """Read ``path`` as ``model`` and run ``check`` on it. ``ConfigError`` lists the problems.

    ``overlays`` are texts whose settings win over those of the file, the last one first (``config.reading.overlays``),
    and ``settings`` such as ``source.store=/data/hub`` win over both.

    Relative paths in the file are resolved against the file's folder, so a node may be started from anywhere.
    """
    return parse(_read(path), path, model, check, settings, overlays=overlays)


def parse(
    text: str,
    file: str,
    model: type[Config],
    check: Callable[[Config], Sequence[Finding]] | None = None,
    settings: Sequence[str] = (),
    *,
    overlays: Sequence[str] = (),
) -> Loaded[Config]:
    """Read a text as ``load`` reads a file; ``file`` is its name in errors."""
    node = _compose(text, file)
    if overlays:
        from weft.config.reading.overlays import lay_over  # where there are any, and not in every node

        node = lay_over(node, overlays)
    if settings:
        from weft.config.reading.overrides import apply  # where there are any, and not in every node

        node = apply(node, settings)
    reader = YamlReader(os.path.dirname(os.path.abspath(file)), model, parse)
    value = reader.read(node, model_shape(model), ())
    if reader.findings or value is INVALID:
        raise _error(file, reader.lines, reader.findings)
    loaded = Loaded(value, file, reader.lines)
    findings = check(value) if check else ()
    if findings:
        raise loaded.refuse(findings)
    return loaded


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError([Problem(path, 0, (), why_unreadable(error))]) from None
    if len(data) > FILE_BYTES_MAX:
        message = f"expected a configuration of at most {FILE_BYTES_MAX} bytes. Name a configuration file"
        raise ConfigError([Problem(path, 0, (), message)])
    if data.startswith(_UTF_16):
        raise ConfigError([Problem(path, 1, (), "this is UTF-16 text. Save the file as UTF-8")])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            [Problem(path, line, (), f"expected UTF-8 text, got byte {data[error.start]:#04x}. Save the file as UTF-8")]
        ) from None


def _compose(text: str, file: str) -> yaml.Node:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        line, message = explained(error, text)
        raise ConfigError([Problem(file, line, (), message)]) from None
    except RecursionError:
        raise ConfigError([Problem(file, 0, (), "this is nested too deeply for a configuration")]) from None
    if node is None:
        raise ConfigError(
            [Problem(file, 0, (), "expected settings, got an empty file. Write settings into it, or name another file")]
        )
    return node


def _error(file: str, lines: dict[KeyPath, int], findings: Sequence[Finding]) -> ConfigError:
    return ConfigError([Problem(file, _line(lines, path), path, message) for path, message in findings[:PROBLEMS_MAX]])


def _line(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """Return the line of the path, or of the nearest section around it when the path is not in the file."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 0)
