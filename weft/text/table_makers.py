"""Makers of a hub's tables, for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

TABLES_NAMED = 5
HUB = "hub"


def table_makers(tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, int]]:
    """Return a row for each maker of tables: names of tables, the maker, its start, and its records that are not rows.

    Args:
        tables: as in ``/v1/status``.

    Returns:
        The rows; none if the hub's nodes make all tables.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for table in tables:
        made_by = table.get("made_by")  # an earlier release does not say it
        maker = (made_by["name"], made_by["since"] or "") if made_by else (HUB, "")
        groups.setdefault(maker, []).append(table)
    if groups.keys() <= {(HUB, "")}:
        return []
    return [
        (_named(group), *maker, sum(each["lag_records"] for each in group)) for maker, group in sorted(groups.items())
    ]


def _named(tables: Sequence[Mapping[str, Any]]) -> str:
    names = [f"{each['tenant']}/{each['stream']}" for each in tables[:TABLES_NAMED]]
    more = len(tables) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def print_stopped(config_file: str, table: dict[str, Any], stopped: dict[str, Any]) -> None:
    """Print the records that stop a table, and the command that skips them."""
    click.echo(
        f"STOPPED: the table of {table['tenant']}/{table['stream']} waits behind offsets {stopped['first']} to "
        f"{stopped['end'] - 1} of shard {stopped['shard']}: {stopped['reason']}"
    )
    click.echo(
        f"  To skip them: weft hub skip {config_file} {table['stream']} --tenant {table['tenant']} "
        f"--shard {stopped['shard']} --from {stopped['first']} --to {stopped['end']} --reason '...'"
    )
