"""``weft hub``: run a hub node, check its configuration, show its state."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from weft.commands import (
    hub_approvals,
    hub_backup,
    hub_cluster,
    hub_configs,
    hub_records,
    hub_regions,
    hub_store,
    hub_streams,
    hub_tables,
    hub_tenants,
    hub_tokens,
)
from weft.commands.common import (
    CheckAnswer,
    ExistingPath,
    LaterGroup,
    cannot_be_done,
    config_argument,
    json_option,
    load_hub,
    located_hub,
    log_level_option,
    print_verdicts,
    store_located,
    until,
)
from weft.commands.credentials import whoami
from weft.commands.hub_settings import settings_of
from weft.commands.hub_store import acts
from weft.commands.hub_tenants import usage
from weft.commands.running import RunningHub, any_hub_argument, running_hub
from weft.config.errors import format_path
from weft.config.units import kind_of
from weft.output import Failed, Refused, harmless, print_facts, print_json, print_table
from weft.service.serving import log_to_stderr
from weft.text.fleet import (
    cluster_log_position,
    disk_text,
    print_stopped,
    show_cluster_log,
    show_edges,
    show_issuer,
    show_quality,
    table_makers,
)

if TYPE_CHECKING:
    from weft.cloud_hub.hub import Hub
    from weft.config.load import Loaded
    from weft.config.models import HubConfig
    from weft.service.serving import RunningSettings


EDGES_SHOWN = 200
CLOCK_DIFFERS_S, CLOCKS_NAMED = 60.0, 3
"""Difference of an edge's clock that is shown, and the number of such edges that are named."""


class _HubCommands(LaterGroup):
    later = {
        "doctor": "weft.commands.hub:hub_doctor",
        "init": "weft.commands.hub_init:hub_init",
        "support-bundle": "weft.commands.support_bundle:hub_support_bundle",
    }


@click.group("hub", cls=_HubCommands)
def hub_group() -> None:
    """Run and inspect a hub node, which takes links from edges, commits to the object store and keeps the tables."""


for each in (
    hub_records.publish,
    hub_records.messages,
    hub_records.tail,
    hub_records.trace,
    hub_records.pull,
    hub_records.pulls,
    whoami,
    hub_cluster.nodes,
    hub_cluster.drain,
    hub_cluster.split,
    hub_cluster.finalize,
    hub_cluster.retire,
    hub_cluster.adopt,
    hub_streams.skip,
    hub_cluster.clock,
    hub_streams.declare_deletion,
    hub_streams.hub_stream_group,
    hub_tables.hub_table_group,
    hub_tokens.hub_token_group,
    hub_tokens.open_hubs,
    hub_tenants.hub_tenant_group,
    hub_configs.hub_group_group,
    hub_configs.hub_config_group,
    hub_tables.hub_schema_group,
    hub_tables.hub_quality_group,
    hub_store.declarations,
    acts,
    hub_approvals.second_person,
    hub_approvals.requests,
    hub_approvals.approve,
    hub_backup.backup,
    hub_backup.restore,
    hub_backup.verify,
    hub_streams.erase,
    hub_streams.erasures,
    usage,
    hub_regions.hub_region_group,
):
    hub_group.add_command(each)

processes_option = click.option(
    "--processes",
    type=click.IntRange(1),
    help="Number of processes that share the shards; instead of the setting `processes`.",
)


@hub_group.command()
@config_argument
@processes_option
@click.option(
    "--advertise",
    multiple=True,
    metavar="URL",
    help="URL at which edges reach this machine, one for each process; instead of the setting `advertise`.",
)
@click.option("--part", hidden=True, help="NUMBER/COUNT/DESCRIPTOR/FIRST, from the supervisor to its processes.")
@log_level_option
def run(config_file: str, processes: int | None, advertise: tuple[str, ...], part: str | None, log_level: str) -> None:
    """Run the node of CONFIG until SIGTERM or SIGINT.

    It is one process per core, each with its own shards and port: the port of `listen` and the following ones. A
    process that ends is started again. With --processes 1, the command is the only process.
    """
    loaded = _advertised(located_hub(config_file), advertise)
    log_to_stderr(log_level)
    if part is not None:
        number, count, alive, first = map(int, part.split("/"))
        from weft.service.serving import end_with_supervisor

        end_with_supervisor(alive)
        _serve(config_file, loaded, number, count, advertise, begins=bool(first))
        return
    from weft.cloud_hub import preflight
    from weft.cloud_hub.settings import check_processes, cores, process_count

    found = preflight.look(loaded.config, datetime.now(UTC))
    count = process_count(loaded.config, processes, cores(), preflight.shards_of(loaded.config, found))
    if needed := [*found.needed, *check_processes(loaded.config, count)]:
        raise cannot_be_done(loaded, needed)
    for finding in (*found.unfit, *found.doubtful):
        logging.getLogger("weft").warning("%s: %s", format_path(finding.path), finding.message)
    if count == 1:
        _serve(config_file, loaded, 0, 1, advertise)
    else:
        _supervise(config_file, count, log_level, advertise)


def _advertised(loaded: Loaded[HubConfig], urls: tuple[str, ...]) -> Loaded[HubConfig]:
    """Return the configuration with the URLs of the command line, for machines that share one file."""
    if not urls:
        return loaded
    from weft.config.schema import UNITS

    try:
        advertise = tuple(str(UNITS["advertised_urls"].parse(url, "")) for url in urls)
    except ValueError as error:
        raise Refused(f"--advertise: {error}") from None
    return replace(loaded, config=msgspec.structs.replace(loaded.config, advertise=advertise))


def _supervise(config_file: str, count: int, log_level: str, advertise: tuple[str, ...]) -> None:
    """Run the node as several processes."""
    from weft.service.serving import CannotStart, DidNotStart, Signals, Supervisor, run_until_stopped

    def arguments(number: int, alive: int, is_first: bool) -> list[str]:
        urls = [f"--advertise={each}" for each in advertise]
        part = f"{number}/{count}/{alive}/{is_first:d}"
        return ["hub", "run", config_file, "--log-level", log_level, *urls, "--part", part]

    async def serve(signals: Signals) -> None:
        await Supervisor(arguments, count).run(signals)

    try:
        run_until_stopped(serve)
    except DidNotStart as failure:
        raise click.exceptions.Exit(abs(failure.status) or 1) from None
    except CannotStart as failure:
        raise Failed(f"{failure}. Mend that, or run the hub as one process: --processes 1") from None


def _serve(
    config_file: str, loaded: Loaded[HubConfig], number: int, count: int, advertise: tuple[str, ...], *,
    begins: bool = True,
) -> None:  # fmt: skip
    """Run one process of the node."""
    from weft.cloud_hub.hub import Hub
    from weft.service.serving import (
        RunningSettings,
        Signals,
        collect_garbage_rarely,
        let_threads_in_soon,
        run_until_stopped,
        software,
    )

    config = loaded.config
    which = f" ({number + 1} of {count})" if count > 1 else ""
    logging.getLogger("weft").info("%s starts with %s, process %d%s", software(), config_file, os.getpid(), which)
    settings = RunningSettings(config_file, config, lambda path: _advertised(located_hub(path), advertise).config)

    async def serve(signals: Signals) -> None:
        collect_garbage_rarely()  # or a start would look at what it has loaded again and again: three times the time
        hub = await Hub.open(replace(settings_of(config, number, count), begins=begins))
        try:
            collect_garbage_rarely()
            let_threads_in_soon()
            click.echo(f"the hub is ready at {hub.url}")
            async with signals.reloading(lambda: _reload(hub, settings, number)):
                if (failure := await signals.stopped(hub.failed())) is not None:
                    raise Failed(failure)
        finally:
            await hub.close()

    with store_located(loaded):
        run_until_stopped(serve)


async def _reload(hub: Hub, settings: RunningSettings, number: int) -> None:
    hub.reload()
    if number == 0:  # once is enough
        await settings.say_what_needs_a_restart()


@hub_group.command()
@config_argument
@click.option("--offline", is_flag=True, help="Do not contact a store in a bucket, and probe no store.")
@processes_option
@json_option
def check(config_file: str, offline: bool, processes: int | None, as_json: bool) -> int:
    """Check CONFIG and what it names: tokens, the store, the ports.

    The command starts nothing. It probes the store as a hub does when it starts: it writes, races and deletes objects
    below `probe/`, and leaves none behind. An error stops a hub from running, or others from using it: exit status 2.
    Warnings go to standard error and leave exit status 0. Run it as the hub's user, whose access rights may differ from
    yours. While the hub runs, its ports are not checked.
    """
    from weft.cloud_hub import preflight

    answer = CheckAnswer(config_file, as_json)
    loaded = answer.load(located_hub)
    from weft.cloud_hub.settings import addresses, check_processes, cores, process_count

    config, found = loaded.config, preflight.look(loaded.config, datetime.now(UTC), offline=offline)
    count = process_count(config, processes, cores(), found.shards)
    wrong = check_processes(config, count)
    taken, untried = preflight.ports(config, addresses(config, count)) if not wrong else ([], [])
    return answer.give(
        loaded,
        errors=[*found.needed, *found.unfit, *wrong, *map(loaded.with_default, taken)],
        warnings=[*found.doubtful, *untried],
        facts={
            "listen": config.listen,
            "store": config.store,
            "kind": kind_of(config.store),
            "shards": found.shards,
            "processes": count,
            "certificates": found.certificates,
        },
        summary=(
            f"store {config.store} ({kind_of(config.store)}), {found.shards} shards, "
            f"{_listening(config, count)}{until(found.certificates)}"
        ),
    )


def _listening(config: HubConfig, count: int) -> str:
    from weft.cloud_hub.settings import addresses

    if count == 1:
        return f"listening on {config.listen}"
    return f"{count} processes, listening on {config.listen} to {addresses(config, count)[-1].port}"


@hub_group.command()
@any_hub_argument
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with an admin token.")
@click.option(
    "--edges",
    type=click.IntRange(0),
    default=EDGES_SHOWN,
    show_default=True,
    help="Maximum number of edges shown, those with an alarm first; 0 shows all. --json has all.",
)
@json_option
def status(hub: str | None, token_file: str | None, edges: int, as_json: bool) -> None:
    """Show every edge that the hub HUB knows, whichever machine it is linked to, and this machine's shards.

    Edges with an alarm come first, then those without a link. Links to other machines are known some 15 s late. A
    disconnected edge is shown until all its lanes have left the hub (`dropped_after`). By its URL or a login, shards
    and links are those of the process that answers.

    \b
    weft hub status hub.yaml
    weft hub status https://hub.example.com --token-file admin.token
    """
    running = running_hub(hub, token_file)
    facts = running.get("/v1/status")
    facts |= running.pages("/v1/edges", "edges")
    unread = facts.get("missing_shards", [])
    facts |= running.get("/v1/troubles") | {"missing_shards": unread}
    here = set[str]()
    if running.port is not None:
        here = {facts["name"]}.union(*(_join(facts, running.beside(peer["port"])) for peer in facts["peers"]))
    _add_strays(facts)
    if as_json:
        print_json(facts)
        return
    print_facts(_of_the_node(facts))
    shards = [
        (
            s["shard"],
            "none" if s["chunk"] is None else s["chunk"],
            s["lanes"],
            s["written"]["records"],
            s["pending_bytes"],
            s["trouble"] or "",
        )
        for s in facts["shards"]
    ]
    print_table(("shard", "chunk", "lanes", "records written", "pending bytes", "trouble"), shards)
    show_cluster_log(facts.get("cluster_log"), time.time())
    show_issuer(facts.get("jwt"))
    if trouble := facts.get("clock", {}).get("trouble"):
        click.echo(f"CLOCK: {trouble}. Off by a minute, the node takes no links, writes no chunk and claims nothing")
    if differ := [each for each in facts["links"] if abs(each.get("clock_off_seconds") or 0.0) > CLOCK_DIFFERS_S]:
        named = ", ".join(f"{each['tenant']}/{each['edge']}" for each in differ[:CLOCKS_NAMED])
        click.echo(f"CLOCK: {len(differ)} of {len(facts['links'])} linked edges have synchronised clocks a minute or "
                   f"more from this hub's ({named}{', ...' if len(differ) > CLOCKS_NAMED else ''}): one side is "
                   "wrong")  # fmt: skip
    _show_troubles(facts)
    if makers := table_makers(facts["tables"]):
        print_table(("tables", "made by", "since", "records behind"), makers)
    for table in facts["tables"]:
        for stopped in table["stopped"]:
            print_stopped(hub or "CONFIG", table, stopped)
    show_quality(facts.get("quality", []))
    for missing in facts.get("missing_shards", []):
        click.echo(f"warning: edges of shard {missing['shard']} are missing here: {missing['trouble']}", err=True)
    show_edges(facts["edges"], time.time(), edges or None, here, facts.get("links_unknown_at", []))


def _show_troubles(facts: dict[str, Any]) -> None:
    """Print conflicts, open gaps and lost records of all hosts."""
    conflicts = [
        (f"{each['tenant']}/{each['edge']}", each["log"], each["stream"], each["since"], each["why"])
        for each in facts["conflicts"]
    ]
    if conflicts:
        print_table(("conflict: edge", "log", "stream", "since", "why"), conflicts)
    if facts["conflicts_more"]:
        click.echo(f"and {facts['conflicts_more']} more conflicts")
    open_gaps = [
        (f"{each['tenant']}/{each['edge']}", each["log"], each["stream"], each["first"], each["since"], each["until"])
        for each in facts["open_gaps"]
    ]
    if open_gaps:
        print_table(("open gap: edge", "log", "stream", "from seq", "since", "until"), open_gaps)
    if facts["open_gaps_more"]:
        click.echo(f"and {facts['open_gaps_more']} more open gaps")
    lost = [
        (f"{each['tenant']}/{each['edge']}", each["log"], each["stream"], each["records"], each["first_seq"])
        for each in facts["lost"]
    ]
    if lost:
        click.echo("LOST: this hub had acknowledged these records. Its store was restored to an earlier state, or lost "
                   "objects; the edges send again what they still have")  # fmt: skip
        print_table(("edge", "log", "stream", "records", "from seq"), lost)
    if unknown := facts.get("lost_unknown_at"):
        click.echo(f"warning: what was lost at {harmless(', '.join(unknown))} is not known here yet", err=True)


def _of_the_node(facts: dict[str, Any]) -> dict[str, str]:
    tls, away = facts.get("tls"), facts.get("store", {}).get("trouble")
    return {
        "hub": facts["cluster_id"],
        "software": facts["software"],
        "level": f"{facts['level']} (this release knows {facts['release_level']})",
        "cluster log": cluster_log_position(facts.get("cluster_log")),
        "last backup": _backup(facts.get("backup")),
        "store's disk": disk_text(facts.get("store", {}), time.time()),
        **({} if away is None else {"STORE": away}),
        **({} if tls is None else {"certificate": f"{tls['certificate']}, valid until {tls['expires'][:10]}"}),
    }


def _backup(last: dict[str, str] | None) -> str:
    return "none is known" if last is None else f"up to {last['up_to'][:19]}Z, at {harmless(last['place'])}"


def _join(facts: dict[str, Any], peer: RunningHub) -> set[str]:
    """Add another process's links, own shards and tables to the facts of the first. Return its name."""
    try:
        others = peer.get("/v1/status")
    except Failed as failure:
        click.echo(f"warning: {failure}. That process's shards, links and tables are missing here", err=True)
        return set()
    owned = [shard for shard in others["shards"] if shard["own"]]
    shown = {shard["shard"]: shard for shard in [*facts["shards"], *owned]}
    facts["shards"] = [shown[number] for number in sorted(shown)]
    # Only the process that makes a table knows what stops it.
    made = {
        (each["tenant"], each["stream"]): each for each in others["tables"] if each.get("process") == others["name"]
    }
    facts["tables"] = [made.get((each["tenant"], each["stream"]), each) for each in facts["tables"]]
    for part in ("links", "latest_tables", "quality"):
        facts[part] = [*facts.get(part, []), *others.get(part, [])]
    return {others["name"]}


def _add_strays(facts: dict[str, Any]) -> None:
    """Report edges as connected whose link to a process of this machine the first process does not know yet."""
    links = {(link["tenant"], link["edge"]): link for link in facts["links"] if link["edge"]}
    for edge in facts["edges"]:
        link = links.get((edge["tenant"], edge["edge"]))
        if link is not None and edge["connected_since"] is None:
            edge.update(connected_since=link["connected_since"], software=link["software"])


# ``weft hub doctor``: what this machine, its store, its clock and its ports are like.


@click.command("doctor")
@config_argument
@json_option
def hub_doctor(config_file: str, *, as_json: bool) -> int:
    """Examine the machine of CONFIG: clock, disk or bucket, files, ports, certificates, names, and releases.

    Each line is `good`, `unknown` with the reason, or `act` with what to do. The command does what `weft hub check`
    does, and writes eight small objects below `probe/`, which it deletes again. It is harmless beside the running hub,
    whose /readyz it asks. Run it as the hub's user, with its environment. Exit status 1 if something is to be done.

    \b
    weft hub doctor hub.yaml
    """
    from weft.cloud_hub.preflight import examine

    return print_verdicts(config_file, examine(load_hub(config_file), time.monotonic, time.time), as_json=as_json)
