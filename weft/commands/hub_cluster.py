"""Processes and shards of a hub's store: ``weft hub nodes``, ``drain``, ``split``, ``clock``, ``finalize``,
``retire``, ``adopt``."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click
from msgspec import UNSET, UnsetType

from weft.cloud_hub import cluster as membership
from weft.cloud_hub.clock import DOUBTED_NS, HubClock
from weft.cloud_hub.cluster import FOREIGN, GONE
from weft.cloud_hub.shard import lane_ends
from weft.commands.common import by_option, config_argument, confirm, json_option, tenant_option, yes_option
from weft.commands.hub_access import Act, StoreHub, acting, administration_of, decision_options, on_store
from weft.commands.running import RunningHub, access_options, any_hub_argument, hub_argument
from weft.config.units import approximate_duration, approximate_size, parse_duration_ns
from weft.hub_api.status import IntakeOfNode
from weft.output import Failed, Refused, counted, harmless, print_facts, print_json, print_table
from weft.protocols.chunk_index import LEVEL_MAX
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.shard.lane_state import Missing
from weft.protocols.shard.shard_state import ShardState
from weft.storage import chunk_log
from weft.storage.chunk_log import (
    BOOT_CLOCK,
    ShardLog,
    first_logs,
    load_every_shard,
    log_of_edge,
    named_open_gap,
    shown_time,
)
from weft.storage.cluster import open_cluster
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.cloud_hub.shard.lane_ends import Ending


# ``weft hub finalize``, ``retire`` and ``adopt``: work on a hub's store, whether nodes run or not.

EdgeLog = tuple[str, str, str | None]
"""Tenant, edge, and id of the log; None for all logs of the edge."""
LanePlan = Callable[[ShardState, ShardLog, list[Lane]], Awaitable["Ending"]]
edge_options = (
    click.argument("edge"),
    tenant_option("Tenant of the edge."),
    click.option("--log", "log_id", metavar="ID", help="Only this log of the edge; `weft hub status` shows ids."),
)


def on_edge(function: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments that name an edge to a command."""
    for option in reversed(edge_options):
        function = option(function)
    return function


async def _finalize(act: Act) -> tuple[int, int]:
    async with act as (store, clock):
        return await membership.finalize(store, LEVEL_MAX, clock())


@click.command()
@config_argument
@decision_options
@yes_option
def finalize(config_file: str, *, reason: str, by: str | None, yes: bool) -> None:
    """Raise the level of the cluster of CONFIG to this release's, after all nodes run it.

    Nodes then write formats that earlier releases cannot read, so a downgrade is no longer possible. The command fails
    while a node of an earlier release runs, and names it.
    """
    if not yes:
        confirm(
            f"raise the cluster of {config_file} to this release's level? Earlier releases cannot read what nodes "
            "write after that",
            "nothing was changed",
        )

    try:
        before, after = asyncio.run(
            _finalize(acting(config_file, f"the cluster's level, up to {LEVEL_MAX}", by, reason))
        )
    except membership.NotFinalized as error:
        raise Failed(str(error)) from None
    if before == after:
        click.echo(f"the cluster is at level {after} already, the level of this release")
    else:
        click.echo(f"the cluster is at level {after} now; it was at level {before}")


@click.command()
@config_argument
@on_edge
@click.option("--reason", required=True, help="Reason, in a few words; recorded with the lanes.")
@click.option(
    "--missing",
    type=click.Choice(["nothing", "unknown"]),
    help="Records that never reached the hub. Unset: `nothing` if the edge stopped in order and delivered all, "
    "otherwise `unknown`. Can be set later.",
)
@by_option
@yes_option
def retire(
    config_file: str,
    edge: str,
    tenant: str,
    log_id: str | None,
    *,
    reason: str,
    missing: str | None,
    by: str | None,
    yes: bool,
) -> None:
    """End the lanes of EDGE at the hub of CONFIG: its disk is gone, or it was taken out of service.

    The edge no longer holds completeness back. Records that it announced and never sent become a gap with the reason
    `operator`. An edge that ended without a last word leaves an open gap: the hub cannot know what it received and
    never sent. Records that arrive later are stored and close both gaps. `weft hub adopt` reverts it.

    Use `--missing unknown` if the edge ran again after its last word, without its link. Use `--missing nothing` if you
    know that the hub has everything.
    """
    said = Missing.UNSAID if missing is None else Missing[missing.upper()]

    if not yes:
        confirm(
            f"retire {_named(tenant, edge, log_id)}? Records that it announced and never sent count as lost",
            "nothing was retired",
        )
    act = acting(config_file, f"edge {_named(tenant, edge, log_id)}", by, reason)
    ending, state = _end(
        act,
        (tenant, edge, log_id),
        lambda state, log, lanes: lane_ends.retire(state, lanes, reason, said, log.cluster.restored),
    )
    lost = sum(gap.end - gap.first for update in ending.updates for gap in update.gaps)
    click.echo(f"retired {len(ending.controls)} lanes of {tenant}/{edge}; {lost} records count as lost")
    _print_open_gaps(state, ending)


@click.command()
@config_argument
@on_edge
@click.option(
    "--missing",
    type=click.Choice(["nothing"]),
    help="`nothing` if the rejected node has no records of its own. Can be set later.",
)
@decision_options
@yes_option
def adopt(
    config_file: str,
    edge: str,
    tenant: str,
    log_id: str | None,
    *,
    missing: str | None,
    reason: str,
    by: str | None,
    yes: bool,
) -> None:
    """Include EDGE again at the hub of CONFIG, after `weft hub retire` or a long absence; or decide a conflict.

    When two nodes have one log, stop the copy first. Completeness moves on, and the remaining node may connect. Records
    that the copy received are only on its disk, and become an open gap.
    """
    said = Missing.UNSAID if missing is None else Missing[missing.upper()]

    if not yes:
        confirm(
            f"adopt {_named(tenant, edge, log_id)}? Where two nodes have one log, the copy must be stopped before",
            "nothing was adopted",
        )
    act = acting(config_file, f"edge {_named(tenant, edge, log_id)}", by, reason)
    ending, state = _end(
        act, (tenant, edge, log_id), lambda state, log, lanes: lane_ends.adopt(state, log, lanes, said)
    )
    lanes = {(control.log_id, control.stream) for control in ending.controls}
    click.echo(f"adopted {len(lanes)} lanes of {tenant}/{edge}")
    _print_open_gaps(state, ending)


def _print_open_gaps(state: ShardState, ending: Ending) -> None:
    lanes = [Lane(each.tenant, each.edge, each.log_id, each.stream) for each in ending.controls]
    for lane, gap in lane_ends.open_gaps(state, lanes):
        click.echo(f"open gap in {lane.stream}: {named_open_gap(gap).sentence}")


def _named(tenant: str, edge: str, log_id: str | None) -> str:
    return f"{tenant}/{edge}" + ("" if log_id is None else f", log {log_id}")


def _end(act: Act, of: EdgeLog, plan: LanePlan) -> tuple[Ending, ShardState]:
    """Write the result of a plan for an edge's lanes, including lanes that left. Return it and the new state."""
    try:
        return asyncio.run(_write_end(act, of, plan))
    except CodecError as error:
        raise Failed(str(error)) from None


async def _write_end(act: Act, of: EdgeLog, plan: LanePlan) -> tuple[Ending, ShardState]:
    tenant, edge, _ = of
    async with act as (store, clock):
        log = await log_of_edge(store, await open_cluster(store, None), tenant, edge)
        # Lanes that ended may have left the state: these have objects of their own.
        gone = await chunk_log.lanes_of(store, log.lineage, tenant, edge)
        ended = await lane_ends.write_ending(
            log,
            lambda state: plan(state, log, _lanes(state, of, gone)),
            wall_clock=clock,
            random_bits=random.SystemRandom().getrandbits,
        )
        return ended, await log.load()


def _lanes(state: ShardState, of: EdgeLog, gone: Collection[Lane]) -> list[Lane]:
    """Return the lanes of an edge, or of one of its logs."""
    tenant, edge, log_id = of
    known = sorted({*state.edge_lanes(tenant, edge), *gone})
    lanes = [lane for lane in known if log_id is None or format_log_id(lane.log_id) == log_id]
    if not lanes:
        logs = ", ".join(sorted({format_log_id(lane.log_id) for lane in known}))
        has = f"it has logs {logs}" if logs else "check name and tenant"
        raise Failed(f"the hub knows no such lane of edge {tenant}/{edge}: {has}")
    return lanes


# ``weft hub nodes``: the hub processes of all hosts, from their entries in the store.


@click.command()
@any_hub_argument
@access_options("an admin token, for a URL or a login")
@json_option
def nodes(hub: str | None, *, token_file: str | None, as_json: bool) -> None:
    """Show the hub processes that share the store of HUB, on all hosts.

    Each owns some of the shards and redirects other edges to their owners. One that starts owns none for half a minute
    (`joining`). One that is silent for three of its intervals, 15 seconds beside other hosts, is `gone`. So is one that
    was started again since. After five minutes it is not shown. One that serves the store that was in the same place
    before is `of another cluster`: end it. By its CONFIG, the store is read, whether hubs run or not.

    Rates are those of what links bring, repetitions included, over the last 60 to 90 seconds before the process was
    seen. Right after a start they are unknown.
    """
    found = administration_of(hub, token_file).nodes().nodes
    if as_json:
        print_json({"nodes": found})
        return
    if not found:
        click.echo("no hub process runs on this store")
        return
    rows = [
        (
            each.name or each.url,
            each.host,
            each.state,
            ",".join(map(str, each.owns)),
            ",".join(map(str, each.shards)),
            each.links,
            "" if each.tables in (None, UNSET) else each.tables,
            *_intake(each.intake),
            each.cluster_log,
            each.software,
            each.level,
            f"{each.seen_seconds_ago:.0f} s ago",
        )
        for each in found
    ]
    print_table(
        (
            "node",
            "host",
            "state",
            "owns shards",
            "shards loaded",
            "links",
            "tables",
            "records/s",
            "bytes/s",
            "cluster log",
            "release",
            "level",
            "seen",
        ),
        [[harmless(cell) if isinstance(cell, str) else cell for cell in row] for row in rows],
    )
    there = [each for each in found if each.state not in (GONE, FOREIGN)]
    unreachable = [each.name for each in there if each.name and not each.advertise]
    if len({each.host for each in there}) > 1 and unreachable:
        click.echo(
            f"no edge can be redirected to {', '.join(unreachable)}: set `advertise` there to the URLs for edges",
            err=True,
        )


def _intake(found: IntakeOfNode | UnsetType | None) -> tuple[object, object]:
    if not found:
        return "", ""
    return f"{found.records_per_second:.1f}", approximate_size(found.bytes_per_second)


# ``weft hub drain``: have hub processes give their shards and edges to others, and wait until they have.

LOOK_S = 1.0


@click.command()
@hub_argument
@click.argument("node")
@click.option("--undo", is_flag=True, help="End the drain: NODE accepts shards and edges again.")
@click.option("--wait", default="60s", show_default=True, help="Longest wait until NODE has no edges and no tables.")
@access_options("a token that has the grant nodes, for a URL or a login")
@decision_options
def drain(hub: str, node: str, *, undo: bool, wait: str, token_file: str | None, reason: str, by: str | None) -> None:
    """Give shards, edges and tables of NODE, a machine or a process as `weft hub nodes` shows it, to the others of HUB.

    HUB is a configuration on this machine, a URL or the name of a login.

    \b
    weft hub drain hub.yaml hub-2 --reason "new disks"

    The others load its shards, and its edges are redirected to them; each is without a hub for a moment. Its tables are
    written by the others, too. NODE continues running and serves those that connect to it, until you stop it. The drain
    survives restarts, until `--undo`.
    """
    try:
        wait_s = parse_duration_ns(wait) / 1e9
    except ValueError as error:
        raise Refused(f"--wait: {error}") from None
    node = node.rstrip("/")
    there = administration_of(hub, token_file, by)
    if undo:
        there.undo_drain(node, reason=reason)
        click.echo(f"{node} takes shards again within some seconds")
        return
    there.nodes()  # before anything is declared: a token that may not see the processes is refused here
    there.drain(node, reason=reason)
    deadline = time.monotonic() + wait_s
    while any(left := _left(there, node)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    if any(left):
        still = f"{counted(left[0], 'link')} and {counted(left[1], 'table')}"
        click.echo(f"{node} is drained, and still has {still}. Stop it when `weft hub nodes` shows none")
    else:
        click.echo(f"{node} is drained and has no links and no tables; stop it now, or end the drain with --undo")


def _left(there: RunningHub | StoreHub, node: str) -> tuple[int, int]:
    """Return the numbers of links of a machine or a process, and of the tables that it writes."""
    own = [each for each in there.nodes().nodes if node in (each.host, each.name)]
    return sum(each.links for each in own), sum(each.tables or 0 for each in own)


# ``weft hub split``: a shard becomes two, whether nodes run or not.


@click.command()
@hub_argument
@click.argument("shard", type=click.IntRange(0))
@click.option("--force", is_flag=True, help="Do it though all edges would be in one of the two shards.")
@access_options("a token that has the grant nodes, for a URL or a login")
@decision_options
@yes_option
def split(hub: str, shard: int, *, force: bool, token_file: str | None, reason: str, by: str | None, yes: bool) -> None:
    """Split SHARD of HUB: about half of its edges move to a new shard.

    HUB is a configuration on this machine, a URL or the name of a login. With a configuration, the store is written,
    whether hubs run or not.

    A shard has one writer, so a split lets a second process take half of the work. Links of the edges that move end,
    and open again within seconds at the new shard. Nothing is lost or duplicated, and readers, tables and Spark queries
    continue. Other shards are not affected. It cannot be reverted.

    An edge is in one shard as a whole: a split does not help a shard that is busy with one edge.

    \b
    weft hub split hub.yaml 3
    """
    there = administration_of(hub, token_file, by)
    if not yes:
        look = there.look_at_split(shard)
        edges = look.moving + look.staying
        confirm(f"split shard {shard}? {counted(look.moving, 'edge')} of {edges} move", "nothing was split")
    done = there.split(shard, force=force, reason=reason)
    click.echo(
        f"shard {shard} is split: {counted(done.moved, 'edge')} moved to shard {done.new_shard}, {done.stayed} stay"
    )


# ``weft hub clock``: the times of a hub's shards, held against the store's, and lowered after a wrong clock.

_SECOND = 10**9
ALL = "all"


class _ShardTime(NamedTuple):
    """The time of a shard, ns since 1970, as of its last chunk; None without a chunk."""

    shard: int
    chunk: int
    created: int | None


class _Times(NamedTuple):
    now: int
    """Nanoseconds since 1970 by the store's clock, as far as it tells."""
    off: int
    """This machine's clock minus the store's at least, ns."""
    shards: list[_ShardTime]

    def ahead(self, shard: _ShardTime) -> int:
        """Return the nanoseconds by which a shard's time is in the future; 0 if it is not by more than seconds."""
        ahead = 0 if shard.created is None else shard.created - self.now
        return ahead if ahead > DOUBTED_NS else 0


@click.command("clock")
@config_argument
@click.option("--set-back", "wanted", metavar="SHARD|all", help="Lower the time of this shard, or of all, to now.")
@click.option("--reason", help="Reason, in a few words; recorded with --set-back.")
@by_option
@json_option
@yes_option
def clock(
    config_file: str, wanted: str | None, reason: str | None, *, by: str | None, as_json: bool, yes: bool
) -> None:
    """Show the times of the shards at the hub of CONFIG beside the store's time, whether nodes run or not.

    A shard's time is that of its last chunk, and never goes back. A node whose clock was ahead leaves a time in the
    future. Until then no chunk of the shard is collected, and none of its lanes retires by age. Queries of complete
    windows treat every grace period as over.

    --set-back lowers such times to the present: that of the shard, when its edges were last seen, and when lanes were
    retired. First set the clocks of all nodes right, or stop those that are wrong. Rows and what queries have given out
    stay as they are.
    """
    if (wanted is None) != (reason is None):
        raise Refused("--set-back and --reason need each other: give both")
    found = on_store(config_file, _look)
    if wanted is None or reason is None:
        _show(found, as_json=as_json)
        return
    late = [each.shard for each in _chosen(found, wanted) if found.ahead(each)]
    if late and not yes:
        named = ", ".join(map(str, late))
        confirm(f"lower the time of shard {named} to now? No node may run with a wrong clock", "nothing was lowered")
    lowered: list[int] = []
    if late:
        target = f"the time of shard {', '.join(map(str, late))}"
        lowered = asyncio.run(_set_back(acting(config_file, target, by, reason), late, reason))
    if as_json:
        print_json({"lowered": lowered})
    elif lowered:
        for shard in lowered:
            click.echo(f"the time of shard {shard} is lowered to now: {reason}")
    else:
        click.echo("nothing was lowered: no such shard has a time in the future")


def _chosen(found: _Times, wanted: str) -> list[_ShardTime]:
    if wanted == ALL:
        return found.shards
    chosen = [each for each in found.shards if str(each.shard) == wanted]
    if not chosen:
        raise Failed(f"--set-back {wanted}: the hub has shards 0 to {len(found.shards) - 1}; `{ALL}` means all of them")
    return chosen


async def _look(store: ObjectStore) -> _Times:
    cluster = await open_cluster(store, None)
    own = HubClock(time.time_ns, BOOT_CLOCK)
    await own.measure(store)
    # Of no stream: the time is in the state's head, and the lanes are not read.
    found = [state for _, state in await load_every_shard(first_logs(store, cluster), frozenset())]
    shards = [_ShardTime(state.shard, state.n, state.created if state.n >= 0 else None) for state in found]
    off = own.off_ns
    return _Times(own.now() - off, off, shards)


async def _set_back(act: Act, shards: list[int], reason: str) -> list[int]:
    """Lower the times of shards, and return those that were in the future."""
    lowered = []
    async with act as (store, clock):
        cluster = await open_cluster(store, None)
        for number in shards:
            ending = await lane_ends.write_ending(
                ShardLog(store, cluster, number),
                partial(_plan_of_set_back, clock=clock, reason=reason),
                wall_clock=clock,
                random_bits=random.SystemRandom().getrandbits,
            )
            lowered += [number] if ending.controls else []
    return lowered


async def _plan_of_set_back(state: ShardState, clock: Callable[[], int], reason: str) -> Ending:
    return lane_ends.set_back(state, clock(), reason)


def _show(found: _Times, *, as_json: bool) -> None:
    if as_json:
        shards = [
            {"shard": each.shard, "chunk": each.chunk, "time_ns": each.created, "ahead_s": found.ahead(each) / _SECOND}
            for each in found.shards
        ]
        print_json({"store_time_ns": found.now, "off_s": found.off / _SECOND, "shards": shards})
        return
    far = approximate_duration(abs(found.off) / _SECOND)
    off = f"{far} {'ahead of' if found.off > 0 else 'behind'} the store's" if found.off else "as the store's"
    print_facts({"time of the store": _moment(found.now), "this machine's clock": off})
    rows = [
        (
            each.shard,
            "none" if each.created is None else each.chunk,
            "" if each.created is None else _moment(each.created),
            f"{approximate_duration(ahead / _SECOND)} ahead" if (ahead := found.ahead(each)) else "",
        )
        for each in found.shards
    ]
    print_table(("shard", "chunk", "time", ""), rows)
    if any(map(found.ahead, found.shards)):
        click.echo(
            "To lower times in the future, after all clocks are right: weft hub clock CONFIG --set-back all "
            "--reason '...'"
        )


def _moment(time_ns: int) -> str:
    return shown_time(time_ns)
