"""``weft hub``: run a hub node, check its configuration, show its state."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import click

from weft.commands.check_answer import CheckAnswer
from weft.commands.common import (
    ExistingPath,
    cannot_be_done,
    config_argument,
    get_status,
    json_option,
    load_hub,
    located,
    located_hub,
    log_level_option,
    using,
)
from weft.config.errors import format_path
from weft.output import print_facts, print_json, print_table
from weft.service.log_format import log_to_stderr

if TYPE_CHECKING:
    from weft.cloud_hub.hub import Hub
    from weft.cloud_hub.settings import HubSettings
    from weft.config.models import HubConfig
    from weft.service.reload import RunningSettings


@click.group("hub")
def command() -> None:
    """Run and inspect a hub node, which takes links from edges, commits to the object store and keeps the tables."""


@command.command()
@config_argument
@log_level_option
def run(config_file: str, log_level: str) -> None:
    """Run the node of CONFIG until SIGTERM or SIGINT."""
    from weft.service.serving import Signals, run_until_stopped, software

    loaded = located_hub(config_file)
    config = loaded.config
    log_to_stderr(log_level)
    logging.getLogger("weft").info("%s starts with %s, process %d", software(), config_file, os.getpid())
    from weft.cloud_hub import preflight
    from weft.cloud_hub.hub import Hub
    from weft.service.reload import RunningSettings

    found = preflight.look(config)
    if found.needed:
        raise cannot_be_done(loaded, found.needed)
    for finding in found.doubtful:
        logging.getLogger("weft").warning("%s: %s", format_path(finding.path), finding.message)

    settings = RunningSettings(config_file, config, load_hub)

    async def serve(signals: Signals) -> None:
        hub = Hub(settings_of(config))
        await hub.start()
        try:
            click.echo(f"the hub is ready at {hub.url}")
            async with signals.reloading(lambda: _reload(hub, settings)):
                await signals.stop.wait()
        finally:
            await hub.close()

    with located(loaded, "store", config.store):
        run_until_stopped(serve)


async def _reload(hub: Hub, settings: RunningSettings) -> None:
    hub.reload()
    await settings.say_what_needs_a_restart()


@command.command()
@config_argument
@click.option("--offline", is_flag=True, help="Do not contact a store in a bucket, and probe no store.")
@json_option
def check(config_file: str, offline: bool, as_json: bool) -> int:
    """Check CONFIG and what it names: tokens, the store, the port.

    The command starts nothing. It probes the store as a hub does when it starts: it writes, races and deletes objects
    below `probe/`, and leaves nothing behind. An error stops a hub from running: exit status 2. Warnings go to standard
    error and leave exit status 0. Run it as the hub's user, who may have access to other files than you. While the hub
    runs, its port is not checked.
    """
    from weft.cloud_hub import preflight

    answer = CheckAnswer(config_file, as_json)
    loaded = answer.load(located_hub)
    config, found = loaded.config, preflight.look(loaded.config, offline=offline)
    taken, untried = preflight.port(config)
    return answer.give(
        loaded,
        errors=[*found.needed, *taken],
        warnings=[*found.doubtful, *untried],
        facts={"listen": config.listen, "store": config.store, "shards": config.shards},
        summary=f"store {config.store}, {config.shards} shards, listening on {config.listen}",
    )


@command.command()
@config_argument
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with an admin token.")
@json_option
def status(config_file: str, token_file: str | None, as_json: bool) -> None:
    """Show the state of the running node of CONFIG: its links and its shards."""
    bind = load_hub(config_file).listen
    with using(token_file or ""):
        facts = get_status(bind, "/v1/status", token_file)
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
    """Return the hub's own settings from its configuration."""
    from weft.cloud_hub.settings import HubSettings, SequencerSettings
    from weft.config.units import parse_bind

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
