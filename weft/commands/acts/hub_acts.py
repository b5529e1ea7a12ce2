"""``weft hub acts``: the record of administrative acts, from a running hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from weft.commands.common import ExistingPath, json_option
from weft.commands.running import any_hub_argument, running_hub
from weft.output import harmless, print_json, print_table

LAST_MAX = 10_000
WHAT_SHOWN_MAX = 200
"""Longest text of what an act changed in a table: of a thousand facts, the first. JSON has all of it."""
WAY, PAGE = "/v1/acts", 200


@click.command()
@any_hub_argument
@click.option("--last", type=click.IntRange(1, LAST_MAX), default=20, show_default=True, help="Number of lines.")
@click.option("--after", type=click.IntRange(0), help="All lines after this one, instead of the newest.")
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with an admin token.")
@json_option
def acts(hub: str | None, *, last: int, after: int | None, token_file: str | None, as_json: bool) -> None:
    """Show who did what at the running hub HUB, when, from where and why, the oldest first.

    Each administrative act leaves a line before it is reported as done. Other acts than changes of facts leave two: one
    when they begin, one with their end. An act without an end was interrupted. `weft hub declarations` shows the lines
    without a running hub.

    \b
    weft hub acts hub.yaml --last 50
    weft hub acts hub.yaml --after 1200 --json
    """
    running = running_hub(hub, token_file)
    if after is None:
        after = max(0, running.get(f"{WAY}?limit=1")["last"] - last)
    found, page = [], {"next_after": str(after)}
    while page["next_after"] is not None:
        page = running.get(f"{WAY}?after={page['next_after']}&limit={PAGE}")
        found += page["acts"]
    if as_json:
        print_json({"acts": found, "last": page["last"]})
        return
    print_lines(found)


def print_lines(found: Sequence[Mapping[str, Any]]) -> None:
    """Print lines of the record as a table."""
    rows = [[harmless(str(cell)) for cell in _row(each)] for each in found]
    print_table(("line", "at", "by", "from", "act", "what", "why"), rows)


def _row(each: Mapping[str, Any]) -> tuple[object, ...]:
    fact = f"{each['kind']} {each['name']}" if each["kind"] else ""
    is_several = each["target"].startswith(f"{each['name']}, ")
    what = f"{each['kind']} {each['target']}" if is_several else each["target"] or fact
    if len(what) > WHAT_SHOWN_MAX:
        what = f"{what[:WHAT_SHOWN_MAX]} ..."
    act = f"{each['act']}: {each['command']}" if each["command"] else each["act"]
    origin = each["origin"] if each["origin"] != each["by"] else ""
    return each["entry"], (each["at"] or "")[:19].replace("T", " "), each["by"], origin, act, what, each["reason"]
