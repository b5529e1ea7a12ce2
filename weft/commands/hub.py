"""``weft hub``: run a hub node, check its configuration, ask how it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from weft.commands.common import (
    config_argument,
    get_status,
    json_option,
    load_hub,
    log_level_option,
)
from weft.output import log_to_stderr, print_facts, print_json, print_table

if TYPE_CHECKING:
    from cloud_hub.settings import HubSettings
    from config.models import HubConfig


@click.group("hub")
def command() -> None:
    """A hub node: takes links from edges, commits to the object store, keeps the tables."""


@command.command()
@config_argument
@log_level_option
def run(config_file: str, log_level: str) -> None:
    """Run the node of CONFIG until SIGTERM or SIGINT."""
    config = load_hub(config_file)
    log_to_stderr(log_level)
    from cloud_hub.hub import Hub
    from weft.serving import run_until_stopped

    async def serve(stop: asyncio.Event) -> None:
        hub = Hub(settings_of(config))
        await hub.start()
        try:
            click.echo(f"the hub is ready at {hub.url}")
            await stop.wait()
        finally:
            await hub.close()

    run_until_stopped(serve)


@command.command()
@config_argument
@json_option
def check(config_file: str, as_json: bool) -> None:
    """Check CONFIG without starting anything. Exit status 2 when it is wrong."""
    config = load_hub(config_file)
    if as_json:
        print_json({"listen": config.listen, "store": config.store, "shards": config.shards})
    else:
        click.echo(f"{config_file} is good: store {config.store}, {config.shards} shards, listening on {config.listen}")


@command.command()
@config_argument
@click.option("--token-file", type=click.Path(exists=True, dir_okay=False), help="File that holds an admin token.")
@json_option
def status(config_file: str, token_file: str | None, as_json: bool) -> None:
    """Say how the running node of CONFIG is: its links and its shards."""
    facts = get_status(load_hub(config_file).listen, "/v1/status", token_file)
    if as_json:
        print_json(facts)
        return
    print_facts({"hub": facts["cluster_id"], "software": facts["software"]})
    shards = [
        (s["shard"], s["chunk"], s["lanes"], s["written"]["records"], s["pending_bytes"], s["trouble"] or "")
        for s in facts["shards"]
    ]
    print_table(("shard", "chunk", "lanes", "records written", "pending bytes", "trouble"), shards)
    links = [
        (f"{link['tenant']}/{link['edge']}", link["connected_since"], ", ".join(link["streams"]))
        for link in facts["links"]
        if link["edge"]
    ]
    if links:
        print_table(("edge", "connected since", "streams"), links)


def settings_of(config: HubConfig) -> HubSettings:
    """The hub's own settings from its configuration."""
    from cloud_hub.settings import HubSettings, SequencerSettings
    from config.units import parse_bind

    host, port = parse_bind(config.listen)
    return HubSettings(
        store=config.store,
        host=host,
        port=port,
        shards=config.shards,
        tokens_file=config.tokens_file,
        open_to_network=config.anonymous == "allowed_beyond_loopback",
        sequencer=SequencerSettings(
            commit_interval_s=config.commit_interval_s,
            mark_interval_s=config.mark_interval_s,
            chunk_bytes_max=config.chunk_bytes_max,
            pending_bytes_max=config.limits.pending_bytes,
        ),
        links_max=config.limits.links,
        link_window_bytes=config.limits.window_bytes,
        batch_bytes_max=config.limits.batch_bytes,
        response_bytes_max=config.limits.response_bytes,
        table_interval_s=config.tables.interval_s if config.tables else None,
    )
