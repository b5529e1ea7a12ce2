"""``weft edge status``: how a node is, from itself while it runs, from its files when it does not."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from weft.commands.common import json_option
from weft.commands.node_log import Target, readable, target_argument
from weft.output import FAILURE_EXIT_CODE, Failed, print_facts, print_json, print_table

if TYPE_CHECKING:
    from edge_node.log_view import LogSummary


@click.command("status")
@target_argument
@json_option
def command(target: str, *, as_json: bool) -> int:
    """Say how a node is: streams, links, disk, and how many hours of outage it survives.

    The node is named by its CONFIG, or by its data_dir. When it does not run, or cannot be asked, its files say what is
    in its log, what a crash tore or lost, and how long an outage the rest of its disk budget would take at the last
    known rate. Exit status 0 when it runs, 1 when it does not.

    \b
    weft edge status edge.yaml
    weft edge status /var/lib/weft --json
    """
    found = Target.of(target)
    try:
        facts = {"running": True, **found.status()}
    except Failed as error:
        facts = _facts_of_files(found, str(error.message))
    if as_json:
        print_json(facts)
    elif "started" in facts:
        _show(facts)
    else:
        _show_files(facts)
    return 0 if facts["running"] else FAILURE_EXIT_CODE


def _show(facts: dict[str, Any]) -> None:
    from config.units import approximate_size

    disk = facts["disk"]
    hours = disk["outage_seconds_left"]
    print_facts(
        {
            "node": f"{facts['tenant']}/{facts['node']} (log {facts['log_id']})",
            "up": f"{facts['uptime_seconds']:.0f} s",
            "clock": facts["clock"],
            "disk": f"{approximate_size(disk['bytes'])} of {approximate_size(disk['budget_bytes'])}",
            "outage left": "unknown yet" if hours is None else f"{hours / 3600:.1f} hours at the present rate",
            "log": facts["log_error"] or facts["log_full"] or facts.get("log_low") or "good",
        }
    )
    streams = facts["streams"].items()
    print_table(
        ("stream", "records", "on disk up to", "lost"),
        [(name, s["next_seq"], s["durable_end"], s["records_lost"]) for name, s in streams],
    )
    now = time.time()
    rows = [
        (
            name,
            link["state"],
            link["pending_records"],
            f"{link['pending_seconds']:.0f} s",
            f"in {max(link['next_try'] - now, 0):.0f} s" if link["next_try"] else "",
            "" if link["state"] == "connected" else link["last_error"],
        )
        for name, link in facts["links"].items()
    ]
    print_table(("link", "state", "records waiting", "behind by", "next try", "trouble"), rows)


def _facts_of_files(found: Target, why_not_asked: str) -> dict[str, Any]:
    """What the files say; ``running`` is None where the system does not tell."""
    from edge_node.log_view import NoLog, is_locked, summarise
    from edge_node.tail import INTERNAL_STREAMS
    from protocols.lane import format_log_id

    with readable(found):
        try:
            summary = summarise(found.log())
        except NoLog as error:
            raise Failed(f"{why_not_asked}; and {error}") from None
    lost = sum(gap.end - gap.first for stream in summary.streams.values() for gap in stream.gaps)
    return {
        "running": is_locked(found.directory),
        "not_asked": why_not_asked,
        "node": found.config.node if found.config else None,
        "tenant": found.config.tenant if found.config else None,
        "data_dir": os.path.abspath(found.directory),
        "log_id": None if summary.log_id is None else format_log_id(summary.log_id),
        "disk": _disk(found, summary),
        "torn_bytes": summary.torn_bytes,
        "records_lost": lost,
        "damage": [{"file": each.file, "offset": each.offset, "end": each.end} for each in summary.damage],
        "streams": {
            name: {
                "next_seq": stream.next_seq,
                "held": stream.held.count(),
                "gaps": len(stream.gaps),
                "records_lost": sum(gap.end - gap.first for gap in stream.gaps),
                "oldest": _seconds(stream.first_time),
                "newest": _seconds(stream.last_time),
            }
            for name, stream in summary.streams.items()
            if name not in INTERNAL_STREAMS
        },
    }


def _disk(found: Target, summary: LogSummary) -> dict[str, Any]:
    """Sizes in bytes. What hubs have already, and so may go, only the running node learns: this is the least left."""
    stat = os.statvfs(found.directory)
    free = stat.f_bavail * stat.f_frsize
    budget = found.config.disk.budget_bytes if found.config else None
    rate = summary.bytes_per_second()
    left = None
    if budget is not None and rate:
        left = max(0, min(budget - summary.bytes, free)) / rate
    times = [(stream.first_time, stream.last_time) for stream in summary.streams.values()]
    return {
        "bytes": summary.bytes,
        "budget_bytes": budget,
        "free_bytes": free,
        "segments": summary.segments,
        "oldest": _seconds(min((first for first, _ in times if first is not None), default=None)),
        "newest": _seconds(max((last for _, last in times if last is not None), default=None)),
        "bytes_per_second": rate,
        "outage_seconds_left": left,
    }


def _show_files(facts: dict[str, Any]) -> None:
    from config.units import approximate_size

    disk, running, left = facts["disk"], facts["running"], facts["disk"]["outage_seconds_left"]
    state = {True: "running, but not asked", False: "NOT RUNNING", None: "unknown whether it runs"}[running]
    size = approximate_size(disk["bytes"])
    print_facts(
        {
            "node": f"{facts['tenant']}/{facts['node']}" if facts["node"] else "named by its folder",
            "state": f"{state} ({facts['not_asked']})",
            "log": f"{facts['log_id'] or 'without a sound header'} in {facts['data_dir']}",
            "disk": size if disk["budget_bytes"] is None else f"{size} of {approximate_size(disk['budget_bytes'])}",
            "newest record": _when(disk["newest"]),
            "outage left": _outage(left, budget=disk["budget_bytes"]),
            "torn": _torn(facts),
            "lost": f"{facts['records_lost']} records, under gap notices" if facts["records_lost"] else "nothing",
        }
    )
    for damage in facts["damage"]:
        click.echo(f"damaged: {damage['file']} from byte {damage['offset']} to {damage['end']}")
    rows = [
        (name, s["held"], s["next_seq"], s["records_lost"], _when(s["oldest"]), _when(s["newest"]))
        for name, s in facts["streams"].items()
    ]
    print_table(("stream", "records in the log", "next seq", "lost", "oldest", "newest"), rows)


def _outage(left: float | None, *, budget: int | None) -> str:
    if left is not None:
        return f"at least {left / 3600:.1f} hours at the rate of its last hour with records"
    return "unknown: name the configuration, which has the budget" if budget is None else "unknown: too few records"


def _torn(facts: dict[str, Any]) -> str:
    if not facts["torn_bytes"]:
        return "nothing"
    if facts["running"]:
        return f"nothing known: {facts['torn_bytes']} bytes were being written"
    return f"{facts['torn_bytes']} bytes at the end, never acknowledged; the next start cuts them"


def _when(seconds: float | None) -> str:
    if seconds is None:
        return "none"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9
