"""``weft link``: an operator's commands to the links of a running node."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Literal

import click

from weft.commands.acts import ordering
from weft.commands.common import json_option
from weft.commands.node_log import NodeLog, target_argument
from weft.config.units import approximate_duration, approximate_size
from weft.edge_node.control.client import ControlFailed, LinksRequest, ask_acknowledge, ask_links
from weft.output import Failed, counted, print_facts, print_json

link_option = click.option("--link", default="", metavar="NAME", help="Name of one link. Without it, all links.")


@click.command()
@target_argument
@link_option
@json_option
def status(target: str, link: str, *, as_json: bool) -> None:
    """Show the links of a running node, named by its CONFIG or its data_dir.

    It shows what waits and why, when it will have arrived at the present rate, and the last error. It also shows how
    long a record takes to the hub, and when the hub's store last accepted a write (the canary). The command goes
    through DATA_DIR/control.sock, from the node's own user or root.

    \b
    weft link status /var/lib/weft
    """
    _show(_ask(target, "status", link), as_json=as_json)


@click.command()
@target_argument
@link_option
@json_option
def pause(target: str, link: str, *, as_json: bool) -> None:
    """Stop sending data on links of a running node, until `weft link resume`.

    The pause survives restarts. The links stay connected; records stay in the log, which can fill. The command goes
    through DATA_DIR/control.sock, from the node's own user or root.

    \b
    weft link pause /var/lib/weft --link satellite
    """
    _show(_ask(target, "pause", link), as_json=as_json)


@click.command()
@target_argument
@link_option
@json_option
def resume(target: str, link: str, *, as_json: bool) -> None:
    """Send data again on links of a running node that were paused.

    The command goes through DATA_DIR/control.sock, from the node's own user or root.

    \b
    weft link resume /var/lib/weft --link satellite
    """
    _show(_ask(target, "resume", link), as_json=as_json)


@click.command()
@target_argument
@json_option
def acknowledge(target: str, *, as_json: bool) -> None:
    """End the alarms of a running node, named by its CONFIG or its data_dir.

    The alarm means that a hub lost records after acknowledging them: its store was restored to an earlier state, or
    lost objects. The alarm also ends by itself when the hub has the records again. The command goes through
    DATA_DIR/control.sock, from the node's own user or root.

    \b
    weft link acknowledge /var/lib/weft
    """
    directory = NodeLog.of(target).directory
    try:
        with ordering(directory, "alarms of links"):
            ended = ask_acknowledge(directory)
    except ControlFailed as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json({"ended": ended})
        return
    for sentence in ended:
        click.echo(f"ended: {sentence}")
    if not ended:
        click.echo("there was no alarm")


def _ask(target: str, action: Literal["status", "pause", "resume"], link: str) -> dict[str, dict[str, Any]]:
    directory = NodeLog.of(target).directory
    guard = contextlib.nullcontext() if action == "status" else ordering(directory, f"link {link or '*'}")
    try:
        with guard:
            links = ask_links(directory, LinksRequest(action, link))
    except ControlFailed as error:
        raise Failed(str(error)) from None
    if link and link not in links:
        raise Failed(f"the node has no link {link}")
    return links


def _show(links: Mapping[str, dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(links)
        return
    now = time.time()
    for name, link in links.items():
        print_facts({"link": name, **_facts(link, now)})
    if not links:
        click.echo("the node has no links")


def _facts(link: Mapping[str, Any], now: float) -> dict[str, str]:
    since = link["connected_since"]
    state = link["state"] if since is None else f"{link['state']} for {approximate_duration(max(now - since, 0))}"
    found = {"state": f"{state}, {link['url']}" if link["url"] else state}
    if link["hold"]:
        found["data"] = link["hold"]
    found["waiting"] = _waiting(link)
    if link["delivery_seconds"] is not None:
        found["delivery"] = f"{_short(link['delivery_seconds'])} from the log to the hub's acknowledgement"
    if link["pull"]:
        found["pull"] = link["pull"]
    if link["ping_seconds"] is not None:
        found["round trip"] = _short(link["ping_seconds"])
    found["canary"] = _canary(link, now)
    if link["budget_bytes"] is not None:
        used, budget = approximate_size(link["budget_used_bytes"]), approximate_size(link["budget_bytes"])
        found["budget"] = f"{used} of {budget} used this month"
    if link["next_try"]:
        found["next try"] = f"in {approximate_duration(max(link['next_try'] - now, 0))}"
    if link["last_error"]:
        found["last error"] = f"{_ago(link['last_error_time'], now)}: {link['last_error']}"
    if link["alarm"]:
        found["ALARM"] = link["alarm"]
    return found


def _waiting(link: Mapping[str, Any]) -> str:
    records = link["pending_records"]
    if not records:
        return "nothing"
    size = "size unknown" if link["pending_bytes"] is None else f"about {approximate_size(link['pending_bytes'])}"
    left = link["drain_seconds"]
    ends = "they do not become fewer now" if left is None else f"at the hub in about {approximate_duration(left)}"
    return f"{counted(records, 'record')} ({size}) of {approximate_duration(link['pending_seconds'])}; {ends}"


def _canary(link: Mapping[str, Any], now: float) -> str:
    """Return what is known of the whole way to the hub's store and back."""
    if link["canary_alarm"]:
        return f"OVERDUE: {link['canary_alarm']}"
    if link["canary_seconds"] is None:
        return "unknown: the hub has not confirmed a write to its store yet"
    proven = f"{_short(link['canary_seconds'])} to the hub's store and back, sent {_ago(link['canary_time'], now)}"
    if link["canary"] == "proven":
        return proven
    why = "not connected" if link["connected_since"] is None else "this hub's release reports nothing without data"
    return f"unknown now, {why}; the last one took {proven}"


def _ago(then: float | None, now: float) -> str:
    return "at an unknown time" if then is None else f"{approximate_duration(max(now - then, 0))} ago"


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else approximate_duration(seconds)
