"""``weft edge``: run an edge node, check its configuration, ask how it is."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import click

from edge_node.check import notes
from weft.commands.common import config_argument, get_status, json_option, load_edge, log_level_option
from weft.output import Failed, log_to_stderr, print_facts, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from config.units import Address, UnixSocket

_PROTOCOLS = ("mqtt", "mqtts", "ws", "wss")


@click.group("edge")
def command() -> None:
    """An edge node: takes messages from devices, keeps them on disk, sends them to hubs."""


@command.command()
@config_argument
@log_level_option
def run(config_file: str, log_level: str) -> None:
    """Run the node of CONFIG until SIGTERM or SIGINT."""
    config = load_edge(config_file)
    log_to_stderr(log_level)
    for note in notes(config):
        logging.getLogger("weft").warning("%s", note)
    from edge_node.node import EdgeNode
    from weft.serving import run_until_stopped, software

    async def serve(stop: asyncio.Event) -> None:
        node = EdgeNode(config, software())
        await node.start()
        try:
            click.echo(f"{config.tenant}/{config.node} is ready: {_addresses(node.listeners, node.http)}")
            await node.run(stop)
        finally:
            await node.close()

    run_until_stopped(serve)


def _addresses(listeners: Mapping[str, Address | UnixSocket], http: Address | None) -> str:
    known = [f"{name.upper() if name in _PROTOCOLS else name} at {address}" for name, address in listeners.items()]
    if http is not None:
        known.append(f"status at http://{http}/")
    return ", ".join(known) or "no listeners"


@command.command()
@config_argument
@json_option
def check(config_file: str, as_json: bool) -> None:
    """Check CONFIG without starting anything. Exit status 2 when it is wrong."""
    config = load_edge(config_file)
    streams = {name: list(stream.from_) for name, stream in config.streams.items()}
    links = {name: list(link.to) for name, link in config.links.items()}
    if as_json:
        facts = {"node": config.node, "tenant": config.tenant, "streams": streams, "links": links}
        print_json({**facts, "notes": notes(config)})
    else:
        for note in notes(config):
            click.echo(f"note: {note}", err=True)
        click.echo(f"{config_file} is good: node {config.node}, {len(streams)} streams, {len(links)} links")


@command.command()
@config_argument
@json_option
def status(config_file: str, as_json: bool) -> None:
    """Say how the running node of CONFIG is: streams, links, disk, and how long an outage it survives."""
    config = load_edge(config_file)
    if config.http is None:
        raise Failed("the node has no status page: its configuration says `http: null`")
    facts = get_status(config.http.bind, "/status")
    if as_json:
        print_json(facts)
    else:
        _show(facts)


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
            "log": facts["log_error"] or facts["log_full"] or "good",
        }
    )
    streams = facts["streams"].items()
    print_table(
        ("stream", "records", "on disk up to"), [(name, s["next_seq"], s["durable_end"]) for name, s in streams]
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
