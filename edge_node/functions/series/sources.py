"""Sources of rows that functions make: of each input the first and the last number, and how many records were used.

As a value they are flat, so that ``State`` holds them as they are: input, first, last, count, then the next input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from weft.edge_node.functions.contract import Row, Source

UNKNOWN = ""
"""Name in place of an input where a row's source is not known: one of its rows was kept by an earlier release."""
INPUTS_MAX = 8
"""Most inputs of one row. The source of a row of more is not known."""
_WIDTH = 4


def source_of(row: Row) -> Source:
    """Return the source of a row: its own record, or what it was made of. Empty where that is not known."""
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
    """Take a row out that is used no longer. The first and the last number stay."""
    for name, _, _, count in _parts(source_of(row)):
        for at in range(0, len(sources) - 1, _WIDTH):
            if sources[at] == name:
                sources[at + _WIDTH - 1] -= count


def known(sources: Sequence[Any]) -> Source:
    """Return the source of a row that is made of a window; empty where it is not known."""
    if UNKNOWN in sources[:1]:
        return ()
    return tuple(value for part in _parts(sources) if part[-1] > 0 for value in part)


def text_of(source: Source) -> str:
    """Return a source as the header of a record has it: ``telemetry 120-150/17``."""
    return ", ".join(_text(*part) for part in _parts(source))


def _text(name: str, first: int, last: int, count: int) -> str:
    numbers = f"{first}" if first == last else f"{first}-{last}"
    return f"{name} {numbers}" + (f"/{count}" if count != last - first + 1 else "")


def _parts(sources: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return (tuple(sources[at : at + _WIDTH]) for at in range(0, len(sources), _WIDTH))
