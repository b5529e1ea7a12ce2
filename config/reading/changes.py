"""Comparison of two readings of a configuration."""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from typing import Any

import msgspec

from weft.config.fields import default_of, model_shape, unit_of


def changed_settings(before: msgspec.Struct, now: msgspec.Struct) -> list[str]:
    """Return the settings that differ, named as in YAML: ``disk.budget``, ``streams.vibration (new)``."""
    return list(_changes(before, now, ""))


def without_defaults(value: Any) -> Any:
    """Return a setting or section as plain values, without the settings that have their defaults.

    So the result stays the same when a later release has more settings or another order, and when a file states a
    default. Settings are sorted by name; mappings keep their order.
    """
    if isinstance(value, msgspec.Struct):
        fields = model_shape(type(value)).fields
        given = ((field.encode_name, getattr(value, field.name), default_of(field)) for field in fields)
        return {name: without_defaults(each) for name, each, default in sorted(given, key=_name) if each != default}
    if isinstance(value, dict):
        return {name: without_defaults(each) for name, each in value.items()}
    return [without_defaults(each) for each in value] if isinstance(value, tuple) else value


def without_folders(value: Any) -> Any:
    """Return a setting or section with the names of files in place of their paths, so that it is the same on each
    machine and wherever the configuration is."""
    if isinstance(value, msgspec.Struct):
        fields = model_shape(type(value)).fields
        inner = {field.name: getattr(value, field.name) for field in fields}
        for field in fields:
            is_path, each = unit_of(field.type) == "path", inner[field.name]
            inner[field.name] = _names_of(each) if is_path else without_folders(each)
        return msgspec.structs.replace(value, **inner)
    if isinstance(value, dict):
        return {name: without_folders(each) for name, each in value.items()}
    return tuple(without_folders(each) for each in value) if isinstance(value, tuple) else value


def _names_of(paths: Any) -> Any:
    if isinstance(paths, tuple):
        return tuple(map(os.path.basename, paths))
    return None if paths is None else os.path.basename(paths)


def _name(field: tuple[str, Any, Any]) -> str:
    return field[0]


def _changes(before: Any, now: Any, path: str) -> Iterator[str]:
    if before == now:
        return
    if isinstance(before, msgspec.Struct) and type(before) is type(now):
        for field in msgspec.structs.fields(before):
            inner = f"{path}.{field.encode_name}" if path else field.encode_name
            yield from _changes(getattr(before, field.name), getattr(now, field.name), inner)
    elif isinstance(before, dict) and isinstance(now, dict):
        for name in before.keys() | now.keys():
            inner = f"{path}.{name}"
            if name not in now:
                yield f"{inner} (gone)"
            elif name not in before:
                yield f"{inner} (new)"
            else:
                yield from _changes(before[name], now[name], inner)
    elif _are_sections(before) and _are_sections(now) and len(before) == len(now):
        for at, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _changes(one, other, f"{path}[{at}]")
    else:
        yield path


def _are_sections(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, msgspec.Struct) for each in value)
