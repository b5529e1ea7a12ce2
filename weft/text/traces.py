"""Traces for people."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from weft.output import counted, harmless
from weft.text.record import shown, shown_payload

if TYPE_CHECKING:
    from weft.proofs.trace.finding import Looked
    from weft.proofs.trace.forward import Forward
    from weft.proofs.trace.steps import LineageStep, Trace, TracedRecord

CELL_SHOWN_MAX = 80
"""Characters of a cell of a row in a line for people."""


def print_traces(traces: Sequence[Trace], looked: Looked, *, more: bool) -> None:
    """Print rows, and below each what it was made of.

    Args:
        more: there are rows that were not traced.
    """
    for trace in traces:
        if trace.row:
            click.echo(f"row {_row(trace.row)}")
        for step in trace.made_of:
            for line in _lines(step, "  "):
                click.echo(line)
    if not traces:
        click.echo("no row of the table meets the condition")
    if more:
        click.echo("there are more rows; --rows N traces more of them")
    if looked.files_there or looked.indexes:
        click.echo(
            f"read {looked.files} of {counted(looked.files_there, 'table file')}, and the records of {looked.sections} "
            f"of {counted(looked.indexes, 'chunk')} above the tables"
        )


def print_forward(found: Forward) -> None:
    """Print messages, and what edge functions made of them."""
    for message in found.messages:
        click.echo(_record(message))
    for each in found.made:
        doubt = "" if each.is_certain else ": the message is in its range, of which not all was used"
        click.echo(f"  {each.stream} {_record(each.record)}, made of {each.of}{doubt}")
    if not found.messages:
        click.echo("no such record is in the log or table")
    elif not found.made:
        click.echo("  no record says that it was made of it")
    if found.more:
        click.echo("there are more; --records N shows more of them")


def _row(row: Mapping[str, Any]) -> str:
    cells = (
        f"{shown(name)}={_cut(shown(_cell(value)))}"
        for name, value in row.items()
        if value is not None and name not in {"_from", "payload"}
    )
    return ", ".join(cells)


def _cell(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)
    return msgspec.json.encode(value, enc_hook=str).decode().strip('"')


def _cut(text: str) -> str:
    return text if len(text) <= CELL_SHOWN_MAX else f"{text[:CELL_SHOWN_MAX]}..."


def _lines(step: LineageStep, indent: str) -> Iterator[str]:
    used = step.used
    span = f"seq {used.first}" if step.numbers == 1 else f"seq {used.first} to {used.last}"
    yield f"{indent}{step.stream}, lane {used.edge}/{used.log}, {span}: {step.trouble or _verdict(step)}"
    if step.open_gap is not None:
        yield f"{indent}  OPEN GAP: {harmless(step.open_gap.sentence)}"
    for record in step.records:
        yield f"{indent}  {_record(record)}"
        for each in record.made_of:
            yield from _lines(each, f"{indent}    ")
        if record.is_unknown:
            yield f"{indent}    unknown source: the record does not say what it was made of"


def _verdict(step: LineageStep) -> str:
    used, found = step.used, counted(len(step.records), "record")
    by = f", narrowed by {', '.join(map(shown, step.narrowed_by))}" if step.narrowed_by else ""
    if step.is_exact:
        return found + by
    if step.more:
        return f"the first {found} of {used.count} used{by}; --records N shows more"
    if len(step.records) > used.count:
        return f"{found}{by}, of which {used.count} were used: the row does not say which"
    return f"{found}{by}; {used.count} were used: the others are not in the log or table"


def _record(record: TracedRecord) -> str:
    payload = base64.b64decode(record.payload_base64) if record.payload_base64 else (record.payload or "").encode()
    parts = [record.time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), str(record.seq), shown(record.key), shown_payload(payload)]
    if record.origin is not None:
        parts.append(f"<{shown(record.origin)}>")
    return " ".join(parts)
