"""Settings given on a command line: ``source.store=/data/hub`` in place of the file's values."""

from __future__ import annotations

import re
from collections.abc import Sequence

import yaml

from weft.config.errors import ConfigError, Problem
from weft.config.reading.yaml_words import explained
from weft.config.units import quoted

OPTION = "--set"
_KEY = re.compile(r"([^.\[\]=\s]+)|\[(\d{1,4})\]")
_PATH = re.compile(r"[^.\[\]=\s]+(\.[^.\[\]=\s]+|\[\d{1,4}\])*")


def apply(node: yaml.Node, settings: Sequence[str]) -> yaml.Node:
    """Return the tree of a file with some settings replaced or added. Values are YAML, and have no line.

    Raises:
        ConfigError: one is not ``NAME.NAME=VALUE``, its value is not YAML, or its path leads through a single value.
    """
    for text in settings:
        path, equals, value = text.partition("=")
        if not equals or not _PATH.fullmatch(path):
            raise _wrong(f"expected NAME=VALUE such as source.store=/data/hub, got {quoted(text)}")
        keys = [int(match[2]) if match[2] else match[1] for match in _KEY.finditer(path)]
        node = _replaced(node, keys, _compose(value, path), path)
    return node


def _compose(value: str, path: str) -> yaml.Node:
    try:
        node = yaml.compose(value, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _wrong(f"{path}: {explained(error, value)[1]}") from None
    except RecursionError:
        raise _wrong(f"{path}: this is nested too deeply") from None
    if node is None:
        node = yaml.ScalarNode("tag:yaml.org,2002:null", "", *_nowhere())
    _forget_places(node)
    return node


def _replaced(node: yaml.Node, keys: Sequence[str | int], value: yaml.Node, path: str) -> yaml.Node:
    if not keys:
        return value
    key, *rest = keys
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        node = yaml.MappingNode("tag:yaml.org,2002:map", [], *_nowhere())
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        node.value[key] = _replaced(node.value[key], rest, value, path)
        return node
    if not isinstance(node, yaml.MappingNode) or isinstance(key, int):
        raise _wrong(f"{path}: the file has no such place")
    for at, (name, inner) in enumerate(node.value):
        if name.value == key:
            node.value[at] = (name, _replaced(inner, rest, value, path))
            return node
    name = yaml.ScalarNode("tag:yaml.org,2002:str", str(key), *_nowhere())
    empty = yaml.ScalarNode("tag:yaml.org,2002:null", "", *_nowhere())
    node.value.append((name, _replaced(empty, rest, value, path)))
    return node


def _forget_places(node: yaml.Node) -> None:
    node.start_mark, node.end_mark = _nowhere()
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _forget_places(each)
    elif isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            _forget_places(name)
            _forget_places(value)


def _nowhere() -> tuple[yaml.Mark, yaml.Mark]:
    """Return marks of line 0, as messages count: they then name no line."""
    mark = yaml.Mark(OPTION, 0, -1, 0, None, 0)
    return mark, mark


def _wrong(message: str) -> ConfigError:
    return ConfigError([Problem(OPTION, 0, (), message)])
