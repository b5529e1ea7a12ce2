"""Columns of a SELECT's table: fields of a window's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

COLUMNS_MAX = 500
"""Maximum number of columns of the table."""


def names_in(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a row that can be columns, by their normalised names.

    Names of columns ignore case, and SQL text cannot have a NUL.
    """
    names: dict[str, str] = {}
    for name in values:
        if "\0" not in name:
            names.setdefault(name.lower(), name)
    return names


def fitting(columns: Sequence[str], rows: Sequence[Any]) -> tuple[list[str], list[int]]:
    """Return columns for all fields of some rows, and the indexes of rows with too many fields.

    Topics with few fields are served first, so that one device that sends hundreds does not displace the others'
    columns.

    Args:
        columns: columns that exist in any case.
        rows: each of a time, a topic and values.
    """
    taken = {name.lower(): name for name in columns}
    every = taken.copy()
    for row in rows:
        _add(every, row[2])
    if len(every) <= COLUMNS_MAX:
        return [*every.values()], []
    of_topic: dict[bytes, list[int]] = {}
    for at, row in enumerate(rows):
        of_topic.setdefault(row[1], []).append(at)
    fields = {topic: len(_all(taken, (rows[at][2] for at in places))) for topic, places in of_topic.items()}
    cut: list[int] = []
    for topic in sorted(of_topic, key=lambda each: (fields[each], each)):
        for at in of_topic[topic]:
            more = {each: name for each, name in names_in(rows[at][2]).items() if each not in taken}
            if len(taken) + len(more) > COLUMNS_MAX:
                cut.append(at)
            else:
                taken |= more
    # In the rows' order, as for windows that keep all.
    return [name for each, name in every.items() if each in taken], sorted(cut)


def _add(names: dict[str, str], values: Mapping[str, Any]) -> None:
    for name in values:
        if name.lower() not in names and "\0" not in name:
            names[name.lower()] = name


def _all(known: Mapping[str, str], every: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    names = dict(known)
    for values in every:
        _add(names, values)
    return names
