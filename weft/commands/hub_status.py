"""``weft hub status``, ``losses`` and ``doctor``: what a running hub knows of its fleet, and of its machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import UNSET

from weft.commands.common import config_argument, json_option, load_hub, print_verdicts
from weft.commands.running import RunningHub, access_options, any_hub_argument, running_hub, whole
from weft.config.units import approximate_duration, format_size
from weft.output import Failed, counted, harmless, print_facts, print_json, print_table
from weft.text.hub_status import (
    clocks_that_differ,
    cluster_log_position,
    disk_text,
    edges_in_trouble,
    only_trouble,
    print_stopped,
    show_certificate,
    show_cluster_log,
    show_edges,
    show_issuer,
    show_quality,
    table_makers,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.hub_api.edges import EdgeOfHub
    from weft.hub_api.shards import DrainOfNode
    from weft.hub_api.status import LastBackupOfStore, LinkOfProcess, StatusAnswer, TroublesAnswer

EDGES_SHOWN = 200
NAMED = 3
"""Number of edges that a line names."""


@click.command()
@any_hub_argument
@access_options("an admin token")
@click.option(
    "--edges",
    type=click.IntRange(0),
    default=EDGES_SHOWN,
    show_default=True,
    help="Maximum number of edges shown, those with an alarm first; 0 shows all. --json has all.",
)
@click.option("--trouble", "is_trouble", is_flag=True, help="Show nothing but what is in trouble.")
@json_option
def status(hub: str | None, token_file: str | None, edges: int, *, is_trouble: bool, as_json: bool) -> None:
    """Show every edge that the hub HUB knows, whichever machine it is linked to, and this machine's shards.

    What is in trouble comes first; of the edges, those with an alarm, then those without a link. Links to other
    machines are known some 15 s late. A disconnected edge is shown until all its lanes have left the hub
    (`dropped_after`). By its URL or a login, shards and links are those of the process that answers.

    \b
    weft hub status hub.yaml
    weft hub status hub.yaml --trouble
    weft hub status https://hub.example.com --token-file admin.token
    """
    running = running_hub(hub, token_file)
    first, listed, troubles = running.status(), whole("edges", running.edges), running.troubles()
    drains = running.drains()
    beside = [] if running.port is None else first.peers
    others = [each for peer in beside if (each := _answers_of(running.beside(peer.port))) is not None]
    facts, troubles = _joined(first, [each for each, _ in others]), _with_quotas(troubles, [each for _, each in others])
    listed = msgspec.structs.replace(listed, edges=_with_strays(listed.edges, facts.links))
    links = len(facts.links)
    if is_trouble:
        facts = only_trouble(facts, time.time())
    if as_json:
        if is_trouble:
            listed = msgspec.structs.replace(listed, edges=edges_in_trouble(listed.edges))
        parts: list[dict[str, Any]] = [msgspec.to_builtins(each) for each in (facts, listed, troubles, drains)]
        print_json(parts[0] | parts[1] | parts[2] | parts[3] | {"missing_shards": listed.missing_shards or []})
        return
    name = hub or "CONFIG"
    if not is_trouble:
        print_facts(_of_the_node(facts))
    _show_process(name, facts, drains.drains)
    _show_clocks(facts, links)
    _show_losses(name, listed.edges)
    _show_quotas(name, troubles)
    _show_troubles(troubles)
    _show_tables(name, facts)
    show_quality(facts.quality or ())
    for missing in listed.missing_shards or ():
        click.echo(f"warning: edges of shard {missing.shard} are missing here: {missing.trouble}", err=True)
    here = set() if running.port is None else {first.name, *(each.name for each, _ in others)}
    show_edges(listed.edges, time.time(), edges or None, here, listed.links_unknown_at or (), only_trouble=is_trouble)
    shards = [
        (s.shard, "none" if s.chunk is None else s.chunk, s.lanes, s.written.records, s.pending_bytes, s.trouble or "")
        for s in facts.shards
    ]
    if shards:
        print_table(("shard", "chunk", "lanes", "records written", "pending bytes", "trouble"), shards)
    if not is_trouble and (makers := table_makers(facts.tables)):
        print_table(("tables", "made by", "since", "records behind"), makers)


def _show_process(name: str, facts: StatusAnswer, drains: Sequence[DrainOfNode]) -> None:
    """Print what is wrong with a process, its cluster and its keys, and what ends soon."""
    if (store := facts.store or None) is not None and store.trouble:
        click.echo(f"STORE: {store.trouble}")
    for each in drains:
        why = f": {harmless(each.reason)}" if each.reason else ""
        left = [counted(many, what) for many, what in ((each.links, "link"), (each.tables, "table")) if many]
        still = f". Still there: {' and '.join(left)}" if left else ""
        click.echo(
            f"DRAINED: {harmless(each.node)} since {each.since[:19]}Z, by {harmless(each.by)}{why}{still}. To end it: "
            f"weft hub drain {name} {harmless(each.node)} --undo"
        )
    show_cluster_log(name, facts.cluster_log, time.time())
    show_certificate(facts.tls, time.time())
    show_issuer(facts.jwt or None)


def _show_tables(name: str, facts: StatusAnswer) -> None:
    """Print which tables do not continue, and why."""
    if facts.tables_trouble:
        click.echo(f"TABLES: {harmless(facts.tables_trouble)}")
    for table in facts.tables:
        if table.error:
            click.echo(f"TABLE: {table.tenant}/{table.stream} is not being updated: {harmless(table.error)}")
        for stopped in table.stopped:
            print_stopped(name, table, stopped)
    for latest in facts.latest_tables or ():
        if latest.error:
            what = f"the latest table of {latest.tenant}/{latest.stream}"
            click.echo(f"TABLE: {what} is not being updated: {harmless(latest.error)}")
    for metadata in facts.iceberg_tables or ():
        if metadata.error:
            what = f"the Iceberg metadata of {metadata.path}"
            click.echo(f"TABLE: {what} is not being updated: {harmless(metadata.error)}")


def _show_clocks(facts: StatusAnswer, of: int) -> None:
    """Print which clocks are wrong.

    Args:
        of: number of links.
    """
    if trouble := facts.clock.trouble:
        click.echo(
            f"CLOCK: {trouble}. Off by a minute, the node accepts no links, writes no chunks and confirms no "
            "completeness"
        )
    kept, alone = clocks_that_differ(facts.links)
    for found, whose, what in (
        (kept, "have synchronised clocks", "one side is wrong"),
        (alone, "have clocks that no time service keeps,", "set up a time service on them (`weft edge doctor`)"),
    ):
        if found:
            named = ", ".join(f"{each.tenant}/{each.edge}" for each in found[:NAMED])
            more = ", ..." if len(found) > NAMED else ""
            click.echo(
                f"CLOCK: {len(found)} of {of} linked edges {whose} a minute or more from this hub's "
                f"({named}{more}): {what}"
            )


def _show_losses(name: str, edges: Sequence[EdgeOfHub]) -> None:
    """Print which edges gave up records."""
    found = sorted((each for each in edges if each.lost_records), key=lambda each: -(each.lost_records or 0))
    if found:
        named = ", ".join(f"{each.tenant}/{each.edge} {each.lost_records or 0:,}" for each in found[:NAMED])
        click.echo(
            f"GIVEN UP: {counted(len(found), 'edge')} lost records for good ({named}"
            f"{', ...' if len(found) > NAMED else ''}). Their numbers: weft hub losses {name}"
        )


def _show_quotas(name: str, found: TroublesAnswer) -> None:
    """Print which tenants have reached a quota."""
    for each in found.at_quota or ():
        wait = f", which wait {approximate_duration(each.wait_seconds)}" if each.wait_seconds else ""
        limit = format_size(each.limit) if each.quota == "bytes_per_second" else f"{each.limit:,}"
        of = counted(each.edges, "edge")
        click.echo(
            f"QUOTA: tenant {each.tenant} has reached {each.quota} ({limit}), with {of}{wait}. "
            f"To raise it: weft hub tenant set {name} {each.tenant} --{each.quota.replace('_', '-')} QUOTA"
        )


def _show_troubles(found: TroublesAnswer) -> None:
    """Print conflicts, open gaps and lost records of all hosts."""
    conflicts = [
        (f"{each.tenant}/{each.edge}", each.log, each.stream, each.since, each.why) for each in found.conflicts
    ]
    if conflicts:
        print_table(("conflict: edge", "log", "stream", "since", "why"), conflicts)
    if found.conflicts_more:
        click.echo(f"and {found.conflicts_more} more conflicts")
    open_gaps = [
        (f"{each.tenant}/{each.edge}", each.log, each.stream, each.first, each.since, each.until)
        for each in found.open_gaps
    ]
    if open_gaps:
        print_table(("open gap: edge", "log", "stream", "from seq", "since", "until"), open_gaps)
    if found.open_gaps_more:
        click.echo(f"and {found.open_gaps_more} more open gaps")
    lost = [(f"{each.tenant}/{each.edge}", each.log, each.stream, each.records, each.first_seq) for each in found.lost]
    if lost:
        click.echo(
            "LOST: this hub had acknowledged these records. Its store was restored to an earlier state, or lost "
            "objects; the edges send again what they still have"
        )
        print_table(("edge", "log", "stream", "records", "from seq"), lost)
    if found.lost_unknown_at:
        unknown = harmless(", ".join(found.lost_unknown_at))
        click.echo(f"warning: what was lost at {unknown} is not known here yet", err=True)


def _of_the_node(facts: StatusAnswer) -> dict[str, str]:
    tls, store = facts.tls, facts.store or None
    return {
        "hub": facts.cluster_id,
        "software": facts.software,
        "level": f"{facts.level} (this release knows {facts.release_level})",
        "cluster log": cluster_log_position(facts.cluster_log),
        "last backup": _backup(facts.backup or None),
        "store's disk": disk_text(UNSET if store is None else store.disk, time.time()),
        **({} if tls is None else {"certificate": f"{tls.certificate}, valid until {tls.expires[:10]}"}),
    }


def _backup(last: LastBackupOfStore | None) -> str:
    return "none is known" if last is None else f"up to {last.up_to[:19]}Z, at {harmless(last.place)}"


def _answers_of(peer: RunningHub) -> tuple[StatusAnswer, TroublesAnswer] | None:
    """Return the status and troubles of another process of this machine; None, after a warning, without an answer."""
    try:
        return peer.status(), peer.troubles()
    except Failed as failure:
        click.echo(f"warning: {failure}. That process's shards, links and tables are missing here", err=True)
        return None


def _with_quotas(first: TroublesAnswer, others: Sequence[TroublesAnswer]) -> TroublesAnswer:
    """Return the troubles of one process with the tenants that have reached a quota at any of them, at the one where
    they wait the longest."""
    every = [each for one in (first, *others) for each in one.at_quota or ()]
    every.sort(key=lambda each: each.wait_seconds)
    found = {(each.tenant, each.quota): each for each in every}
    return msgspec.structs.replace(first, at_quota=[found[each] for each in sorted(found)])


def _joined(first: StatusAnswer, others: Sequence[StatusAnswer]) -> StatusAnswer:
    """Return the status of one process with the links, own shards and tables of others."""
    shown = {each.shard: each for each in first.shards}
    shown |= {each.shard: each for other in others for each in other.shards if each.own}
    # Only the process that makes a table knows what stops it.
    made = {(each.tenant, each.stream): each for other in others for each in other.tables if each.process == other.name}
    every = (first, *others)
    return msgspec.structs.replace(
        first,
        shards=[shown[number] for number in sorted(shown)],
        tables=[made.get((each.tenant, each.stream), each) for each in first.tables],
        links=[each for one in every for each in one.links],
        latest_tables=[each for one in every for each in one.latest_tables or ()],
        iceberg_tables=[each for one in every for each in one.iceberg_tables or ()],
        quality=[each for one in every for each in one.quality or ()],
    )


def _with_strays(edges: Sequence[EdgeOfHub], links: Sequence[LinkOfProcess]) -> list[EdgeOfHub]:
    """Return edges as connected whose link to a process of this machine the first process does not know yet."""
    linked = {(link.tenant, link.edge): link for link in links if link.edge}
    found = list(edges)
    for at, edge in enumerate(edges):
        if edge.connected_since is None and (link := linked.get((edge.tenant, edge.edge))) is not None:
            since, software = link.connected_since, link.software or None
            found[at] = msgspec.structs.replace(edge, connected_since=since, software=software)
    return found


# ``weft hub losses``: the records of all edges that are lost for good.


@click.command()
@any_hub_argument
@click.option("--edge", metavar="EDGE", help="Only losses of this edge.")
@click.option("--tenant", metavar="TENANT", help="Only edges of this tenant. Default: those that the token may see.")
@access_options("a token of scope reader or admin")
@json_option
def losses(hub: str | None, *, edge: str | None, tenant: str | None, token_file: str | None, as_json: bool) -> None:
    """Show the records of all edges of the running hub HUB that are lost for good, and why.

    Edges are sorted by tenant and name. Of each edge, the eight largest gaps are listed, and the number of the others.
    Sequence numbers are those of the lane. A loss of reason `absent` ends if another sender still brings the records.

    \b
    weft hub losses hub.yaml
    weft hub losses hub.yaml --edge press-7
    """
    found = whole("edges", running_hub(hub, token_file).losses, tenant=tenant)
    listed = [each for each in found.edges if edge in (None, each.edge)]
    if as_json:
        print_json(msgspec.structs.replace(found, edges=listed))
        return
    rows = [
        (f"{of.tenant}/{of.edge}", each.stream, each.log, each.first, each.end - 1, each.end - each.first, each.reason)
        for of in listed
        for each in of.losses
    ]
    if rows:
        print_table(("edge", "stream", "log", "first", "last", "records", "reason"), rows)
    for each in listed:
        if each.losses_more:
            click.echo(f"{each.tenant}/{each.edge}: and {counted(each.losses_more, 'gap')} more")
    for missing in found.missing_shards or ():
        click.echo(f"warning: edges of shard {missing.shard} are missing here: {missing.trouble}", err=True)
    records = sum(each.records for each in listed)
    click.echo(f"{counted(records, 'record')} of {counted(len(listed), 'edge')} lost for good")


# ``weft hub doctor``: what this machine, its store, its clock and its ports are like.


@click.command("doctor")
@config_argument
@json_option
def hub_doctor(config_file: str, *, as_json: bool) -> int:
    """Examine the machine of CONFIG: clock, disk or bucket, files, ports, certificates, names, and releases.

    Each line is `good`, `unknown` with the reason, or `act` with what to do. The command makes the checks of
    `weft hub check`, and writes eight small objects below `probe/`, which it deletes again. It is harmless beside the
    running hub, whose /readyz it asks. Run it as the hub's user, with its environment. Exit status 1 if something is to
    be done.

    \b
    weft hub doctor hub.yaml
    """
    from weft.cloud_hub.preflight import examine

    return print_verdicts(config_file, examine(load_hub(config_file), time.monotonic, time.time), as_json=as_json)
