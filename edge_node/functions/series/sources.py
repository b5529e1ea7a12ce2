"""Sources of rows that functions create: for each input the first and the last number, and the number of used records.

They are flat lists, so that ``State`` can hold them: input, first, last, count, then the next input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from weft.edge_node.functions.contract import Row, Source

UNKNOWN = ""
"""Name in place of an input where a row's source is unknown, because an earlier release kept one of its rows."""
INPUTS_MAX = 8
"""Maximum number of inputs of one row. With more, its source is unknown."""
_WIDTH = 4


def source_of(row: Row) -> Source:
    """Return the source of a row: its own record, or the records it was made of. Empty where they are unknown."""
    return (row.input, row.seq, row.seq, 1) if row.seq >= 0 else row.source


def note(sources: list[Any], row: Row) -> None:
    """Add a row to the sources of a window."""
    join(sources, source_of(row) or (UNKNOWN,))


def join(sources: list[Any], other: Sequence[Any]) -> None:
    """Add the sources of other rows."""
    if UNKNOWN in (*sources[:1], *other[:1]):
        sources[:] = [UNKNOWN]
        return
    for name, first, last, count in _parts(other):
        at = next((at for at in range(0, len(sources), _WIDTH) if sources[at] == name), None)
        if at is not None:
            low, high, number = sources[at + 1 : at + _WIDTH]
            sources[at + 1 : at + _WIDTH] = [min(low, first), max(high, last), number + count]
        elif len(sources) < INPUTS_MAX * _WIDTH:
            sources += [name, first, last, count]
        else:
            sources[:] = [UNKNOWN]
            return


def take(sources: list[Any], row: Row) -> None:
    """Remove a row that is no longer used. The first and the last number stay."""
    for name, _, _, count in _parts(source_of(row)):
        for at in range(0, len(sources) - 1, _WIDTH):
            if sources[at] == name:
                sources[at + _WIDTH - 1] -= count


def known(sources: Sequence[Any]) -> Source:
    """Return the source of a window's result; empty where it is unknown."""
    if UNKNOWN in sources[:1]:
        return ()
    return tuple(value for part in _parts(sources) if part[-1] > 0 for value in part)


def text_of(source: Source) -> str:
    """Return a source in the form of a record's header: ``telemetry 120-150/17``."""
    return ", ".join(_text(*part) for part in _parts(source))


def _text(name: str, first: int, last: int, count: int) -> str:
    numbers = f"{first}" if first == last else f"{first}-{last}"
    return f"{name} {numbers}" + (f"/{count}" if count != last - first + 1 else "")


def _parts(sources: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return (tuple(sources[at : at + _WIDTH]) for at in range(0, len(sources), _WIDTH))
