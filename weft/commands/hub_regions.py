"""``weft hub region``: the links to other regions, as they last wrote it to the store, and orders to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from weft.cloud_hub.facts.hub import compare_region
from weft.commands.common import config_argument, json_option, load_hub
from weft.commands.hub_access import Act, acting, administration_of, decision_options, declare
from weft.commands.hub_settings import settings_of
from weft.commands.running import access_options, any_hub_argument, hub_argument
from weft.config.units import approximate_duration, format_size
from weft.hub_api.regions import BudgetOfRegion, RegionLinkOfStore
from weft.output import FAILURE_EXIT_CODE, Failed, counted, harmless, print_json, print_table
from weft.protocols.errors import CodecError
from weft.storage.chunk_log import CollectedPast
from weft.storage.object_store import NotFound
from weft.storage.table.actions import TableError

if TYPE_CHECKING:
    from weft.cloud_hub.regions.history import History
    from weft.cloud_hub.settings import RegionSettings


@click.command()
@any_hub_argument
@access_options("an admin token, for a URL or a login")
@json_option
def status(hub: str | None, *, token_file: str | None, as_json: bool) -> None:
    """Show the link of each shard of HUB to each region, as its process last wrote it to the store.

    `next` is the first chunk of the shard that the region is not known to have. The log keeps chunks from there on, for
    as long as `pin` allows, and `log waits` is how much longer. The figures are up to five minutes old, and `seen` is
    their age. The lag of a region that has everything is 0 s. A lag of records is unknown until the link has caught up
    once. Below the table are the streams that are behind, those with the longest lag first, and the month's budget of
    each region that has one.
    """
    answer = administration_of(hub, token_file).regions()
    found, budgets = answer.regions, {each.region: each.budget for each in answer.configured}
    if as_json:
        print_json({"regions": found, "budgets": budgets})
        return
    if not found:
        click.echo(
            "no regions: `regions` of the configuration names the hubs that receive the records of this one's log"
        )
        return
    print_table(
        (
            "region",
            "shard",
            "state",
            "records behind",
            "bytes behind",
            "behind by",
            "log waits",
            "next",
            "seen",
            "lost chunks",
            "error",
        ),
        [[harmless(cell) if isinstance(cell, str) else cell for cell in _row(each)] for each in found],
    )
    for link in found:
        for line in _behind(link):
            click.echo(harmless(line))
    for name, budget in budgets.items():
        if budget is not None:
            click.echo(harmless(_of_budget(name, budget)))


@click.command()
@hub_argument
@click.argument("region")
@access_options("a token that has the grant nodes, for a URL or a login")
@decision_options
def pause(hub: str, region: str, *, token_file: str | None, reason: str, by: str | None) -> None:
    """Pause the links to REGION, at all hosts, until `weft hub region resume`.

    HUB is a configuration on this machine, a URL or the name of a login. The links stay open. The log keeps what the
    region lacks, for as long as `pin` allows.
    """
    administration_of(hub, token_file, by).pause_region(region, paused=True, reason=reason)
    click.echo(f"records for {region} wait within some seconds, until: weft hub region resume {hub} {region}")


@click.command()
@hub_argument
@click.argument("region")
@access_options("a token that has the grant nodes, for a URL or a login")
@decision_options
def resume(hub: str, region: str, *, token_file: str | None, reason: str, by: str | None) -> None:
    """Resume the links to REGION after a pause.

    HUB is a configuration on this machine, a URL or the name of a login.
    """
    administration_of(hub, token_file, by).pause_region(region, paused=False, reason=reason)
    click.echo(f"the links to {region} continue within some seconds")


@click.command()
@config_argument
@click.argument("region")
@decision_options
def compare(config_file: str, region: str, *, reason: str, by: str | None) -> None:
    """Compare the whole log with what REGION of CONFIG holds, and send what it lacks.

    Use it for a region that lost acknowledged records, for example because its store was restored from a backup. The
    links restart from the beginning of the log. `weft hub region history` sends records that the log has deleted.
    Numbers are compared, not columns: each region keeps the `_time` to which it corrected a record.
    """
    _known(config_file, region)
    declare(config_file, compare_region(region), by, reason)
    click.echo(f"the links to {region} restart from the beginning of the log within some seconds")


@click.command()
@config_argument
@click.argument("region")
@decision_options
def history(config_file: str, region: str, *, reason: str, by: str | None) -> int:
    """Send REGION of CONFIG the records that this hub's log deleted before the region had them: from the tables.

    Use it for a region that was unreachable for longer than `pin`, or that joins a hub with older records. All rows are
    compared with what the region holds, and it gets those that it lacks. The links of the log continue meanwhile. The
    command may be interrupted and run again. Exit status 1 if records could not be sent.
    """
    from weft.cloud_hub.regions.history import HistoryError

    _known(config_file, region)
    settings = settings_of(load_hub(config_file)).regions[region]

    try:
        done = asyncio.run(_bring(acting(config_file, f"history for region {region}", by, reason), region, settings))
    except (HistoryError, TableError, NotFound, CodecError, CollectedPast) as error:
        raise Failed(str(error)) from None
    click.echo(f"{region} has all {counted(done.rows, 'row')} of the tables, each once")
    if done.given_up:
        click.echo(
            f"{counted(done.given_up, 'record')} left the tables by erasure, by skips or by age: {region} has a gap of "
            "reason `operator` for those that it lacks"
        )
    if done.chunks:
        click.echo(f"{counted(done.chunks, 'chunk')} no longer count as lost; status and metrics follow within minutes")
    for each in done.left_out:
        click.echo(f"LEFT OUT: {harmless(each)}")
    return FAILURE_EXIT_CODE if done.left_out else 0


async def _bring(act: Act, region: str, settings: RegionSettings) -> History:
    from weft.cloud_hub.regions.history import HistoryTransfer

    async with act as (store, _):
        return await HistoryTransfer(store, region, settings, wall_clock=time.time_ns, monotonic=time.monotonic).run()


def _known(config_file: str, region: str) -> None:
    known = load_hub(config_file).regions
    if region not in known:
        raise Failed(f"`regions` of {config_file} has no {region}; there are: {', '.join(sorted(known)) or 'none'}")


def _row(link: RegionLinkOfStore) -> tuple[object, ...]:
    if link.seen_seconds_ago is None:
        return link.region, link.shard, link.state, "", "", "", "", "", "", "", ""
    return (
        link.region,
        link.shard,
        link.state,
        "unknown" if link.lag_records is None else link.lag_records,
        "unknown" if link.lag_bytes is None else f"about {format_size(link.lag_bytes)}",
        approximate_duration(link.lag_seconds) if link.lag_seconds else "",
        _left(link.left_seconds),
        link.next,
        f"{approximate_duration(link.seen_seconds_ago)} ago",
        ", ".join(f"{each.first} to {each.end - 1}" for each in link.lost_chunks),
        link.error or link.hold,
    )


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return approximate_duration(seconds) if seconds else "no longer"


def _behind(link: RegionLinkOfStore) -> Iterator[str]:
    """Yield a line for each stream that is behind, and one for the rest of them."""
    place = f"{link.region}, shard {link.shard}"
    for each in link.streams:
        size = "" if each.lag_bytes is None else f", about {format_size(each.lag_bytes)}"
        yield (
            f"{place}: {each.tenant}/{each.stream} is behind by {counted(each.lag_records, 'record')}{size}, "
            f"{approximate_duration(each.lag_seconds)}"
        )
    if more := link.streams_behind - len(link.streams):
        yield f"{place}: and {counted(more, 'further stream')}"


def _of_budget(region: str, budget: BudgetOfRegion) -> str:
    text = (
        f"{region}: {format_size(budget.used_bytes)} of the month's {format_size(budget.bytes)} are used, and "
        f"{format_size(budget.kept_bytes)} are reserved for links without data; the month ends at {budget.ends}"
    )
    return f"{text}. USED UP: records wait until then" if budget.used_up else text
