"""Text of ``weft edge status``."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import click

from weft.config.log_lines import clock_difference
from weft.config.units import YEAR_S, approximate_duration, approximate_size
from weft.edge_node.status.facts import outage_duration, outage_left, pair_line
from weft.output import counted, print_facts, print_table
from weft.text.record import shown

_RANGES_SHOWN_MAX = 5
_UNKNOWN = "unknown"
_UNROUTED = {"keep": "kept in the stream unrouted", "live": "sent to subscribers and not kept", "refuse": "refused"}


def show_running(facts: dict[str, Any], now: float) -> None:
    """Print the status of a node that answered."""
    disk = facts["disk"]
    known = {
        "node": f"{facts['tenant']}/{facts['node']} (log {facts['log_id']})",
        "state": f"running for {approximate_duration(facts['uptime_seconds'])}",
        "clock": _clock(facts),
        "configuration": _configuration(facts.get("configuration", {}), now),
        "disk": _disk(disk),
        "outage left": outage_left(facts),
        "log": "; ".join(facts.get("conflicts", {}).values())
        or facts["log_error"]
        or facts["log_full"]
        or facts["log_low"]
        or "good",
    }
    functions = facts.get("functions", {})
    if found := "; ".join(f"{name}: {shown(each['trouble'])}" for name, each in functions.items() if each["trouble"]):
        known["FUNCTIONS"] = found
    if found := _last_start(facts["recovery"]):
        known["last start"] = found
    if unrouted := _unrouted(facts["unrouted"]):
        known["unrouted"] = unrouted
    if misfits := _misfits(facts["mqtt"]):
        known["misfits"] = misfits
    print_facts(known)
    print_table(
        ("stream", "in the log", "next seq", "lost", "waiting for the disk"),
        [(name, *_counts(s), s["next_seq"] - s["durable_end"]) for name, s in facts["streams"].items()],
    )
    if sources := facts.get("sources", {}):
        print_table(
            ("source", "state", "messages", "waiting for the disk", "waiting at the broker", "next try", "trouble"),
            [(name, *_source(each, now)) for name, each in sources.items()],
        )
        print_table(
            ("source", "connected since", "values a second", "lag", "bad values", "overflows", "last error"),
            [(name, *_values(each, now)) for name, each in sources.items()],
        )
    if schemas := facts.get("schemas", {}):
        print_table(
            ("schema of stream", "checked", "too long", "accepted", "dead letters", "refused", "last misfit in"),
            [(name, *_schema(each)) for name, each in schemas.items()],
        )
    if functions:
        show_functions(functions)
    if queues := facts.get("queues", {}):
        show_queues(queues)
    rows = [
        (
            name,
            link["state"],
            link["pending_records"],
            approximate_duration(link["pending_seconds"]),
            _next_try(link, now),
            link.get("alarm") or ("" if link["state"] == "connected" else link["last_error"]),
        )
        for name, link in facts["links"].items()
    ]
    if rows:
        print_table(("link", "state", "records waiting", "behind by", "next try", "trouble"), rows)
    if pair := facts.get("pair"):
        show_pair(pair, now)
    if imports := facts.get("imported", {}):
        print_table(
            ("imported log", "state", "records waiting", "trouble"),
            [(log_id, each["state"], each["pending_records"], each["trouble"]) for log_id, each in imports.items()],
        )


def show_pair(pair: dict[str, Any], now: float) -> None:
    """Print how a node and its peer keep each other's records."""
    known = {"pair": pair_line(pair)}
    # Of a connection that lasts, it is about a stream that the peer does not take.
    if pair["last_error"] and (pair["state"] != "connected" or pair["records_with_one_disk"]):
        known["of the peer"] = pair["last_error"]
    if pair["alone_since"] is not None:
        known["ALONE"] = f"for {approximate_duration(max(now - pair['alone_since'], 0))}: records have one disk"
    known["records with one disk"] = str(pair["records_with_one_disk"])
    if not pair["compared"]:
        known["take-over"] = "by command alone: this log was not compared with all of its hubs yet"
    for name, why in pair["copies_unopened"].items():
        known[f"copy {name}"] = f"cannot be opened: {why}"
    print_facts(known)
    rows = [
        (
            f"{each['tenant']}/{each['node']}",
            each["records"],
            f"{approximate_size(each['bytes'])} of {approximate_size(each['budget_bytes'])}",
            "connected" if each["connected"] else "taking over" if each["taking_over"] else "away",
            each["trouble"],
        )
        for each in pair["copies"].values()
    ]
    if rows:
        print_table(("copy of", "records for the hubs", "size", "state", "trouble"), rows)


def clock_trouble(facts: dict[str, Any]) -> str | None:
    """Return how far the node's clock is from a hub's; None while it is near, or no link knows."""
    offsets = [link.get("clock_offset_seconds") for link in facts["links"].values()]
    return clock_difference(max((each for each in offsets if each is not None), key=abs, default=None))


def show_functions(functions: dict[str, Any]) -> None:
    """Print the figures of derived streams since the node started."""
    print_table(
        (
            "derived stream",
            "rows in",
            "rows out",
            "rejected",
            "waiting",
            "behind by",
            "remembers",
            "version",
            "trouble",
        ),
        [(name, *_functions(each)) for name, each in functions.items()],
    )


def show_queues(queues: dict[str, Any]) -> None:
    """Print what waits in queues, and the longest of them; nothing while there was no queue."""
    if not any(queues[key] for key in ("queues", "messages", "delivered", "dead_lettered", "expired", "dropped")):
        return
    used = f"{approximate_size(queues['bytes'])} of {approximate_size(queues['bytes_max'])}"
    waiting = f"{counted(queues['messages'], 'message')} in {counted(queues['queues'], 'queue')}, {used} in the log"
    print_facts({"queues": f"{waiting}; {queues['unacknowledged']} delivered and not acknowledged"})
    became = (
        f"{queues['delivered']} delivered, {queues['redelivered']} of them again; "
        f"{queues['acknowledged']} acknowledged, {counted(queues['dead_lettered'], 'dead letter')}; "
        f"{queues['expired']} expired, {queues['dropped']} dropped, {queues['not_taken']} not taken"
    )
    print_facts({"of queued messages": became})
    if not queues["longest"]:
        return
    print_table(
        ("queue", "messages", "size", "unacknowledged", "consumers", "not taken", "lost"),
        [
            (
                shown(each["queue"]),
                each["messages"],
                approximate_size(each["bytes"]),
                each["unacknowledged"],
                each["consumers"],
                each["not_taken"],
                each["lost"],
            )
            for each in queues["longest"]
        ],
    )


def show_files(facts: dict[str, Any]) -> None:
    """Print the status from the files of a node that did not answer."""
    disk, lost = facts["disk"], facts["records_lost"]
    owner = facts["owner"]
    names = owner if facts["node"] is None and owner is not None else facts
    known = {"node": f"{names['tenant']}/{names['node']}"} if names["node"] else {}
    known |= {
        "state": _state(facts),
        "folder": f"{facts['data_dir']} (log {facts['log_id'] or 'without a sound header'})",
        "disk": _disk(disk),
        "newest record": _when(disk["newest"]),
        "outage left": _outage_of_files(disk),
        "lost": f"{counted(lost, 'record')}, under gap notices" if lost else "nothing",
    }
    if facts["wrong_name"] is not None:
        known["next start"] = f"REFUSED: {facts['wrong_name']}"
    elif facts["next_start"] is not None:
        known["next start"] = _next_start(facts["next_start"])
    print_facts(known)
    for damage in facts["damage"]:
        click.echo(f"damaged: {damage['file']} from byte {damage['offset']} to {damage['end']}")
    print_table(
        ("stream", "in the log", "next seq", "lost", "oldest", "newest"),
        [(name, *_counts(s), _when(s["oldest"]), _when(s["newest"])) for name, s in facts["streams"].items()],
    )


def _clock(facts: dict[str, Any]) -> str:
    differs = clock_trouble(facts)
    if differs is not None:
        return f"{facts['clock']}, {differs}: set it, for example with `timedatectl set-ntp true`"
    if facts["clock"] == "synchronised":
        return "synchronised"
    return f"{facts['clock']}: no time source vouches for it, so hubs correct the times of records"


def _next_try(link: dict[str, Any], now: float) -> str:
    return f"in {approximate_duration(max(link['next_try'] - now, 0))}" if link["next_try"] else ""


def _source(source: dict[str, Any], now: float) -> tuple[object, ...]:
    waiting = "" if source["waiting"] is None else source["waiting"]
    trouble = shown(source.get("trouble", "" if source["state"] == "connected" else source["last_error"]))
    messages, unacknowledged = source["messages"], source["unacknowledged"]
    return source["state"], messages, unacknowledged, waiting, _next_try(source, now), trouble


def _values(source: dict[str, Any], now: float) -> tuple[object, ...]:
    since, lag, error = source["connected_since"], source.get("lag_seconds"), source["last_error"]
    ago = f" ({approximate_duration(max(now - source['last_error_time'], 0))} ago)" if error else ""
    counts = (source.get(name) for name in ("bad_values", "overflows"))
    per_second = source.get("values_per_second")
    return (
        "" if since is None else datetime.fromtimestamp(since, UTC).strftime("%F %T UTC"),
        "" if per_second is None else per_second,
        source.get("lag_unknown", "") if lag is None else approximate_duration(lag),
        *("" if each is None else each for each in counts),
        shown(error) + ago,
    )


def _schema(each: dict[str, Any]) -> tuple[object, ...]:
    counts = ("checked", "unchecked", "accepted", "dead_lettered", "refused")
    return *(each[count] for count in counts), shown(each["last_misfit"])


def _functions(each: dict[str, Any]) -> tuple[object, ...]:
    behind = _UNKNOWN if each["lag_seconds"] is None else approximate_duration(each["lag_seconds"])
    waiting = _UNKNOWN if each["lag_records"] is None else each["lag_records"]
    state = approximate_size(each["state_bytes"])
    counted_rows = each["rows_in"], each["rows_out"], each["rows_rejected"], waiting
    return (
        *counted_rows,
        behind,
        state,
        each["version"],
        shown("; ".join(filter(None, (each["trouble"], each["refused"], each.get("warning"))))),
    )


def _counts(stream: dict[str, Any]) -> tuple[object, ...]:
    lost = ", ".join(f"{count} {reason}" for reason, count in stream["lost"].items())
    return stream["held"], stream["next_seq"], lost or 0


def _disk(disk: dict[str, Any]) -> str:
    used, budget = approximate_size(disk["bytes"]), disk["budget_bytes"]
    return used if budget is None else f"{used} of {approximate_size(budget)}"


def _outage_of_files(disk: dict[str, Any]) -> str:
    if disk["outage_seconds_left"] is not None:
        # What hubs have already could go, and only the running node learns of it.
        left = disk["outage_seconds_left"]
        at_least = "at least " if left <= YEAR_S else ""
        return f"{at_least}{outage_duration(left)} at the rate of its last hour with records"
    if disk["budget_bytes"] is None:
        return "unknown: name the node by its configuration, which has the disk budget"
    return "unknown: too few records"


def _state(facts: dict[str, Any]) -> str:
    why = facts["not_asked"].removesuffix("; is the node running?")
    if facts["running"] is None:
        return f"unknown: this system does not say whether the node runs. Read from its files: {why}"
    return f"running; read from its files: {why}" if facts["running"] else "NOT RUNNING"


def _configuration(found: dict[str, Any], now: float) -> str:
    """Return the version of the configuration, and what of its file is not in force."""
    if not found:
        return "unknown"
    parts = [f"version {found['number']} ({found['digest']}), for {approximate_duration(max(now - found['since'], 0))}"]
    if found["restart"]:
        parts.append(f"need a restart: {', '.join(found['restart'])}")
    if found["refused"]:
        parts.append(f"the file as it is now is not in force: {found['refused']}")
    return "; ".join(parts)


def _unrouted(unrouted: dict[str, Any]) -> str:
    """Return the state of unrouted messages; empty while there are none, or while they are kept."""
    if not unrouted["messages"] and unrouted["policy"] == "keep":
        return ""
    messages = counted(unrouted["messages"], "message")
    lines = [f"{messages} that no stream matches since the start: {_UNROUTED[unrouted['policy']]}"]
    lines += [f"{shown(each['topic'])}: {each['messages']}" for each in unrouted["busiest"]]
    return "\n".join(lines)


def _misfits(counts: dict[str, Any]) -> str:
    """Return what HTTP brought that does not fit its stream; empty for nothing."""
    refused, taken = counts.get("http_misfits_refused", 0), counts.get("http_misfits_taken", 0)
    lines = [f"refused {counted(refused, 'HTTP request')}"] if refused else []
    lines += [f"took {counted(taken, 'message')} (`misfits: take`)"] if taken else []
    return f"{' and '.join(lines)} with another topic than `from`, or no JSON, since the start" if lines else ""


def _last_start(recovery: dict[str, Any]) -> str:
    found = []
    if recovery["torn_bytes"]:
        found.append(f"cut {counted(recovery['torn_bytes'], 'byte')} at the end: a commit that was never acknowledged")
    if recovery["records_lost"]:
        found.append(f"found {counted(recovery['records_lost'], 'record')} lost, which gap notices name")
    found += [f"found damage in {file}, and moved it aside" for file in recovery["damaged_files"]]
    return "\n".join(found)


def _next_start(coming: dict[str, Any]) -> str:
    lines = []
    if coming["torn_bytes"]:
        lines.append(f"cuts {counted(coming['torn_bytes'], 'byte')} at the end: a commit that was never acknowledged")
    if coming["unreadable_bytes"]:
        lines.append(f"cannot read {counted(coming['unreadable_bytes'], 'byte')} where the newest records were")
    if coming["lost"]:
        at_most = "up to " if coming["unreadable_bytes"] else ""
        lines.append(
            f"finds {at_most}{counted(coming['records_lost'], 'record')} lost, and writes gap notices for "
            f"{'it' if coming['records_lost'] == 1 else 'them'}: {_ranges(coming['lost'])}"
        )
    lines += [f"keeps the damaged {file} aside" for file in coming["damaged_files"]]
    lines += [f"sets {file} aside, which may be another log's" for file in coming["strange_files"]]
    # Of sealed segments the start reads the indexes only, and so does this.
    return "\n".join(lines) or "finds nothing to repair (weft log dump checks every byte)"


def _ranges(lost: list[dict[str, Any]]) -> str:
    shown = [f"{each['stream']} {_numbers(each['first'], each['end'])}" for each in lost[:_RANGES_SHOWN_MAX]]
    more = len(lost) - len(shown)
    return ", ".join(shown) + (f", and {counted(more, 'range')} more" if more else "")


def _numbers(first: int, end: int) -> str:
    return f"seq {first}" if end == first + 1 else f"seq {first} to {end - 1}"


def _when(seconds: float | None) -> str:
    if seconds is None:
        return "none"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
