"""``weft hub tenant``: tenants in the cluster log, with their quotas."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from weft.cloud_hub.facts import tenants as tenant_changes
from weft.cloud_hub.facts.tenants import Quotas
from weft.cloud_hub.splits import Apart, CannotSetApart
from weft.commands.common import json_option, tenant_option
from weft.commands.hub_access import (
    Act,
    StoreHub,
    acting,
    administration_of,
    begin,
    decision_options,
    declare,
    declaring,
)
from weft.commands.running import (
    RunningHub,
    access_options,
    any_hub_argument,
    hub_argument,
    names_a_config,
    running_hub,
    whole,
)
from weft.config.units import approximate_duration, approximate_size, parse_size
from weft.output import Failed, Refused, print_facts, print_json, print_table
from weft.protocols.errors import CodecError

if TYPE_CHECKING:
    from weft.hub_api.tenants import UsageAnswer


MERGES_MAX = 5
"""Maximum number of attempts to change a tenant that others change, too."""
NONE = "none"
"""Word that takes a quota back."""
_OPTIONS: dict[str, tuple[Callable[[str], int], str]] = {
    "edges": (int, "Edges that tokens of the cluster log may name, or `none`."),
    "streams": (int, "Number of streams, or `none`."),
    "lanes": (int, "Number of lanes, or `none`: one for each stream of each edge."),
    "links": (int, "Number of edges that are linked at one time, or `none`."),
    "bytes_per_second": (lambda text: parse_size(text.removesuffix("/s")), "Rate such as 4MiB/s, or `none`."),
    "records_per_second": (int, "Number of records in a second, or `none`."),
    "table_bytes": (parse_size, "Size of all tables of all rows such as 2TiB, or `none`."),
    "stored_bytes": (parse_size, "Size such as 2TiB, or `none`; recorded."),
}
"""Quota -> parser and help of its option."""


def quota_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each quota to a command."""
    for name, (_, text) in reversed(_OPTIONS.items()):
        function = click.option(f"--{name.replace('_', '-')}", name, metavar="QUOTA", help=text)(function)
    return function


isolation_option = click.option(
    "--isolation",
    type=click.Choice(("own", "shared")),
    help="`own`: shards and tables below a prefix of its own, only without data yet.",
)


@click.command()
@hub_argument
@click.argument("name")
@quota_options
@isolation_option
@access_options("a token that has the grant tenants, for a URL or a login")
@decision_options
def add(
    hub: str,
    name: str,
    *,
    isolation: str | None,
    token_file: str | None,
    reason: str,
    by: str | None,
    **given: str | None,
) -> None:
    """Declare tenant NAME at HUB: a configuration on this machine, a URL or the name of a login.

    \b
    weft hub tenant add hub.yaml acme --edges 40 --bytes-per-second 4MiB/s --reason "contract 17"
    weft hub tenant add hub.yaml acme --isolation own
    """
    quotas, _ = _quotas(given)
    if names_a_config(hub):
        with declaring():
            decision = tenant_changes.set_tenant(name, quotas, is_new=True)
        begin(hub, [decision], by, reason)
    else:
        _only_quotas(isolation)
    there = administration_of(hub, token_file, by)
    there.set_tenant(name, **{each: getattr(quotas, each) for each in _OPTIONS}, version=0, reason=reason)
    click.echo(f"declared tenant {name}")
    _isolate(hub, name, isolation, by, reason)


@click.command("set")
@hub_argument
@click.argument("name")
@quota_options
@isolation_option
@access_options("a token that has the grant tenants, for a URL or a login")
@decision_options
def set_tenant(
    hub: str,
    name: str,
    *,
    isolation: str | None,
    token_file: str | None,
    reason: str,
    by: str | None,
    **given: str | None,
) -> None:
    """Change quotas or the isolation of tenant NAME at HUB: a configuration on this machine, a URL or the name of a
    login. Others stay as they are; `none` removes a quota. `--isolation` needs a configuration. `--isolation own` sets
    a tenant apart that has no data yet. Its shards and tables get the prefix `tenants/NAME/` in the store, which a
    policy of the bucket can open alone. It cannot be reverted.

    After a command that was interrupted, the hub refuses the tenant's edges. Repeat it, or let the shards accept the
    tenant again with `--isolation shared`.
    """
    quotas, cleared = _quotas(given)
    is_quota = any(value is not None for value in given.values())
    if not is_quota and isolation is None:
        raise Refused("nothing to set: give a quota, such as --edges 40, or --isolation own")
    if not names_a_config(hub):
        _only_quotas(isolation)
    with declaring():
        tenant_changes.set_tenant(name, quotas, cleared, is_new=False)  # refuses what no tenant can have
    # Without quotas it declares nothing, and refuses a name that is no tenant's before a shard is split off for it.
    _change(administration_of(hub, token_file, by), name, quotas, cleared, reason)
    if is_quota:
        click.echo(f"changed tenant {name}")
    _isolate(hub, name, isolation, by, reason)


def _only_quotas(isolation: str | None) -> None:
    """Refuse what a running hub does not take."""
    if isolation is not None:
        raise Refused("--isolation moves shards in the store: name the CONFIG of a hub of it, not a URL or a login")


def _change(hub: RunningHub | StoreHub, name: str, quotas: Quotas, cleared: frozenset[str], reason: str) -> None:
    """Change quotas, and leave the others as they are, also those that someone else changes at this moment."""
    there = hub.tenant(name)
    for tries_left in reversed(range(MERGES_MAX)):
        wanted = {each: getattr(there.quotas, each) for each in _OPTIONS} | dict.fromkeys(cleared)
        wanted |= {each: value for each in _OPTIONS if (value := getattr(quotas, each)) is not None}
        try:
            hub.set_tenant(name, **wanted, version=there.version, reason=reason)
            return
        except Failed:
            version, there = there.version, hub.tenant(name)
            if not tries_left or there.version == version:
                raise  # not for a change in between


def _isolate(config_file: str, name: str, isolation: str | None, by: str | None, reason: str) -> None:
    """Set a declared tenant apart, or let the shards take one again of which this did not come to its end."""
    if isolation is None:
        return
    try:
        shard = asyncio.run(
            _move(acting(config_file, f"isolation of tenant {name}: {isolation}", by, reason), name, isolation)
        )
    except (CannotSetApart, CodecError) as error:
        raise Failed(f"tenant {name} was not set apart: {error}" if isolation == "own" else str(error)) from None
    if shard is None:
        click.echo(f"tenant {name} shares the shards of the hub")
        return
    declare(config_file, tenant_changes.set_tenant(name, Quotas(), is_new=False, isolation="own"), by, reason)
    click.echo(f"tenant {name} is set apart: shard {shard}, and the prefix tenants/{name}/ in the store")


async def _move(act: Act, name: str, isolation: str) -> int | None:
    async with act as (store, clock):
        apart = Apart(store, wall_clock=clock, random_bits=random.SystemRandom().getrandbits)
        return await (apart.set(name) if isolation == "own" else apart.take_back(name))


@click.command()
@hub_argument
@click.argument("name")
@access_options("a token that has the grant tenants, for a URL or a login")
@decision_options
def remove(hub: str, name: str, *, token_file: str | None, reason: str, by: str | None) -> None:
    """Withdraw tenant NAME at HUB: a configuration on this machine, a URL or the name of a login.

    Its tokens in the cluster log must be withdrawn before. Its records, streams and tables stay.
    """
    administration_of(hub, token_file, by).remove_tenant(name, reason=reason)
    click.echo(f"withdrew tenant {name}")


@click.command("list")
@any_hub_argument
@access_options("a token that has the grant tenants, for a URL or a login")
@json_option
def list_tenants(hub: str | None, *, token_file: str | None, as_json: bool) -> None:
    """List the tenants of HUB, with quotas, tokens, and streams with declared edges.

    HUB is a configuration on this machine, a URL or the name of a login. The tenant `default` needs no declaration.
    """
    found = whole("tenants", administration_of(hub, token_file).tenants).tenants
    if as_json:
        print_json([{"name": each.tenant, **msgspec.to_builtins(each)} for each in found])
        return
    quotas, more = list(_OPTIONS), ("isolation", "tokens", "streams_with_edges", "changed", "by", "reason")
    print_table(
        ("tenant", *(name.replace("_", " ") for name in (*quotas, *more))),
        [
            (
                f"{each.tenant} (not usable: {each.unusable})" if each.unusable else each.tenant,
                *(_cell(getattr(each.quotas, name)) for name in quotas),
                *(_cell(getattr(each, name)) for name in more),
            )
            for each in found
        ],
    )


def _cell(value: object) -> object:
    return "" if value in (None, msgspec.UNSET) else value  # an earlier release's hub answers without some


def _quotas(given: dict[str, str | None]) -> tuple[Quotas, frozenset[str]]:
    """Return the quotas of the options, and the names of those to take back."""
    numbers: dict[str, int] = {}
    for name, text in given.items():
        if text is None or text == NONE:
            continue
        try:
            numbers[name] = _OPTIONS[name][0](text)
        except ValueError as error:
            raise Refused(f"--{name.replace('_', '-')}: {error}") from None
        if not 0 <= numbers[name] < 1 << 63:
            raise Refused(f"--{name.replace('_', '-')}: expected a number that is not negative, got {text}")
    return Quotas(**numbers), frozenset(name for name, text in given.items() if text == NONE)


# ``weft hub usage``: what a tenant uses of a running hub.

DAY_S = 86_400.0
GROWTH_AFTER_S = 600.0
"""Time since the start of a process after which its rate is worth a figure a day."""


@click.command()
@any_hub_argument
@tenant_option("Tenant whose use is shown.")
@access_options("a token of scope reader or admin")
@json_option
def usage(hub: str | None, *, tenant: str, token_file: str | None, as_json: bool) -> None:
    """Show what a tenant uses of the running hub HUB, beside its quotas.

    Links, lanes, streams and records are those of the whole hub. Received records, and the time of slowed links, are
    counted by the process that answers, since its start; its metrics have the same figures. Sizes of tables are known
    to the process that writes them.

    \b
    weft hub usage hub.yaml --tenant acme
    """
    found = whole("streams", running_hub(hub, token_file).usage, tenant=tenant)
    if as_json:
        print_json(found)
        return
    _show(found, time.time())


def _show(found: UsageAnswer, now: float) -> None:
    quotas, received = found.quotas, found.received

    def of(used: int, quota: int | None) -> str:
        return f"{used}" if quota is None else f"{used} of {quota}"

    facts = {
        "tenant": found.tenant,
        "links": of(found.links, quotas.links),
        "lanes": of(found.lanes, quotas.lanes),
        "streams": of(found.streams_count, quotas.streams),
        "received": f"{approximate_size(received.bytes)}, {received.records} records since {found.since}"
        + _growth(received.bytes, found.since, now),
    }
    if found.table_bytes is not None and quotas.table_bytes is not None:
        facts["tables"] = f"{approximate_size(found.table_bytes)} of {approximate_size(quotas.table_bytes)}"
    if quotas.bytes_per_second is not None:
        facts["bytes a second"] = f"at most {approximate_size(quotas.bytes_per_second)}"
    if quotas.records_per_second is not None:
        facts["records a second"] = f"at most {quotas.records_per_second}"
    if found.share < 1:
        facts["share of this process"] = f"{found.share:.0%} of the rates"
    if found.throttled_seconds:
        facts["throttled"] = f"links were asked to wait {approximate_duration(found.throttled_seconds)} in all"
    if found.refused:
        facts["refused"] = f"{found.refused} links and lanes beyond a quota"
    print_facts(facts)
    print_table(
        ("stream", "records in the log", "bytes received", "records received", "table"),
        [
            (
                each.stream,
                each.records,
                each.received.bytes,
                each.received.records,
                "unknown" if each.table_bytes is None else approximate_size(each.table_bytes),
            )
            for each in found.streams
        ],
    )


def _growth(received: int, since: str, now: float) -> str:
    took = now - datetime.fromisoformat(since).timestamp()
    if took < GROWTH_AFTER_S:
        return ""
    return f": {approximate_size(received / took * DAY_S)} a day"
