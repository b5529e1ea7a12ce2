"""``weft hub finalize``, ``retire`` and ``adopt``: work on a hub's store, whether nodes run or not."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from weft.commands.common import config_argument, confirm, yes_option
from weft.commands.on_store.opening import acting, by_option, reason_option
from weft.output import Failed
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.cloud_hub.shard.lane_ends import Ending
    from weft.protocols.lane import Lane
    from weft.protocols.shard.shard_state import ShardState
    from weft.storage.chunk_log import ShardLog

edge_options = (
    click.argument("edge"),
    click.option("--tenant", default="default", show_default=True, help="Tenant of the edge."),
    click.option("--log", "log_id", metavar="ID", help="Only this log of the edge; `weft hub status` shows ids."),
)


def on_edge(function: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments that name an edge to a command."""
    for option in reversed(edge_options):
        function = option(function)
    return function


@click.command()
@config_argument
@reason_option
@by_option
@yes_option
def finalize(config_file: str, *, reason: str, by: str | None, yes: bool) -> None:
    """Raise the level of the cluster of CONFIG to this release's, after all nodes run it.

    Nodes then write formats that earlier releases cannot read, so there is no way back to those. The command fails
    while a node of an earlier release runs, and names it.
    """
    from weft.cloud_hub.clock import sound_clock
    from weft.cloud_hub.cluster import membership
    from weft.protocols.shard.shard_state import LEVEL_MAX

    if not yes:
        confirm(
            f"raise the cluster of {config_file} to this release's level? Earlier releases cannot read what is written "
            "then",
            "nothing was changed",
        )

    async def work(store: ObjectStore) -> tuple[int, int]:
        return await membership.finalize(store, LEVEL_MAX, (await sound_clock(store))())

    try:
        before, after = acting(config_file, f"the cluster's level, up to {LEVEL_MAX}", work, by, reason)
    except membership.NotFinalized as error:
        raise Failed(str(error)) from None
    if before == after:
        click.echo(f"the cluster is at level {after} already, the level of this release")
    else:
        click.echo(f"the cluster is at level {after} now; it was at level {before}")


@click.command()
@config_argument
@on_edge
@click.option("--reason", required=True, help="Why, in a few words; recorded with the lanes.")
@click.option(
    "--missing",
    type=click.Choice(["nothing", "unknown"]),
    help="Records that the hub never got. Unset: nothing if the edge stopped in order and delivered all, otherwise "
    "unknown. May be set later, too.",
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
    from weft.cloud_hub.shard import lane_ends
    from weft.protocols.shard.lane_state import Missing

    said = Missing.UNSAID if missing is None else Missing[missing.upper()]

    async def plan(state: ShardState, log: ShardLog, lanes: list[Lane]) -> Ending:
        return await lane_ends.retire(state, lanes, reason, said, log.cluster.restored)

    if not yes:
        confirm(
            f"retire {_named(tenant, edge, log_id)}? Records that it announced and never sent count as lost",
            "nothing was retired",
        )
    ending, state = _end(config_file, (tenant, edge, log_id), plan, by, reason)
    lost = sum(gap.end - gap.first for update in ending.updates for gap in update.gaps)
    click.echo(f"retired {len(ending.controls)} lanes of {tenant}/{edge}; {lost} records count as lost")
    _tell_open_gaps(state, ending)


@click.command()
@config_argument
@on_edge
@click.option(
    "--missing",
    type=click.Choice(["nothing"]),
    help="Nothing, if the rejected node has no records of its own. May be set later, too.",
)
@reason_option
@by_option
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
    from weft.cloud_hub.shard import lane_ends
    from weft.protocols.shard.lane_state import Missing

    said = Missing.UNSAID if missing is None else Missing[missing.upper()]

    async def plan(state: ShardState, log: ShardLog, lanes: list[Lane]) -> Ending:
        return await lane_ends.adopt(state, log, lanes, said)

    if not yes:
        confirm(
            f"adopt {_named(tenant, edge, log_id)}? Where two nodes have one log, the copy must be stopped before",
            "nothing was adopted",
        )
    ending, state = _end(config_file, (tenant, edge, log_id), plan, by, reason)
    lanes = {(control.log_id, control.stream) for control in ending.controls}
    click.echo(f"adopted {len(lanes)} lanes of {tenant}/{edge}")
    _tell_open_gaps(state, ending)


def _tell_open_gaps(state: ShardState, ending: Ending) -> None:
    from weft.cloud_hub.shard import lane_ends
    from weft.protocols.lane import Lane
    from weft.storage.chunks.open_gaps import named

    lanes = [Lane(each.tenant, each.edge, each.log_id, each.stream) for each in ending.controls]
    for lane, gap in lane_ends.open_gaps(state, lanes):
        click.echo(f"open gap in {lane.stream}: {named(gap).sentence}")


def _named(tenant: str, edge: str, log_id: str | None) -> str:
    return f"{tenant}/{edge}" + ("" if log_id is None else f", log {log_id}")


def _end(
    config_file: str,
    of: tuple[str, str, str | None],
    plan: Callable[[ShardState, ShardLog, list[Lane]], Awaitable[Ending]],
    by: str | None,
    reason: str,
) -> tuple[Ending, ShardState]:
    """Write the result of a plan for an edge's lanes, including lanes that left. Return it and the new state.

    Args:
        of: tenant, edge, and id of the log, None for all.
    """
    from weft.cloud_hub.clock import sound_clock
    from weft.cloud_hub.shard import lane_ends
    from weft.protocols.errors import CodecError
    from weft.protocols.lane import format_log_id
    from weft.storage.chunks import ended_states
    from weft.storage.cluster import open_cluster
    from weft.storage.every_shard import log_of_edge

    tenant, edge, log_id = of

    async def work(store: ObjectStore) -> tuple[Ending, ShardState]:
        cluster = await open_cluster(store, None)
        log = await log_of_edge(store, cluster, tenant, edge)
        # Lanes that ended may have left the state: these have objects of their own.
        gone = await ended_states.lanes_of(store, log.lineage, tenant, edge)

        async def ending(state: ShardState) -> Ending:
            known = sorted({*state.edge_lanes(tenant, edge), *gone})
            lanes = [lane for lane in known if log_id is None or format_log_id(lane.log_id) == log_id]
            if not lanes:
                logs = ", ".join(sorted({format_log_id(lane.log_id) for lane in known}))
                has = f"it has logs {logs}" if logs else "check name and tenant"
                raise Failed(f"the hub knows no such lane of edge {tenant}/{edge}: {has}")
            return await plan(state, log, lanes)

        ended = await lane_ends.write_ending(
            log, ending, wall_clock=await sound_clock(store), random_bits=random.SystemRandom().getrandbits
        )
        return ended, await log.load()

    try:
        return acting(config_file, f"edge {_named(*of)}", work, by, reason)
    except CodecError as error:
        raise Failed(str(error)) from None
