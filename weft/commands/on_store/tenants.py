"""``weft hub tenant``: tenants in the cluster log, with their quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from weft.commands.common import config_argument, json_option
from weft.commands.on_store.declaring import by_option, declare, read_facts, reason_option
from weft.config.units import parse_size
from weft.output import Refused, print_json, print_table

if TYPE_CHECKING:
    from weft.cloud_hub.declared.documents import Quotas
    from weft.storage.cluster_log.state import ClusterState

NONE = "none"
"""Word that takes a quota back."""
_OPTIONS: dict[str, tuple[Callable[[str], int], str]] = {
    "edges": (int, "Edges that tokens of the cluster log may name, or `none`."),
    "streams": (int, "Number of streams, or `none`; recorded."),
    "bytes_per_second": (lambda text: parse_size(text.removesuffix("/s")), "Rate such as 4MiB/s, or `none`; recorded."),
    "stored_bytes": (parse_size, "Size such as 2TiB, or `none`; recorded."),
}
"""Quota -> parser and help of its option."""


def quota_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each quota to a command."""
    for name, (_, text) in reversed(_OPTIONS.items()):
        function = click.option(f"--{name.replace('_', '-')}", name, metavar="QUOTA", help=text)(function)
    return function


@click.group("tenant")
def command() -> None:
    """Manage the tenants of a hub's store, whether nodes run or not.

    Tokens of the cluster log are for a declared tenant, or for `default`. Hubs enforce the quota of edges when a token
    is added. The others are recorded for people and for other programs.
    """


@command.command()
@config_argument
@click.argument("name")
@quota_options
@reason_option
@by_option
def add(config_file: str, name: str, *, reason: str, by: str | None, **given: str | None) -> None:
    """Declare tenant NAME at the hubs of CONFIG.

    \b
    weft hub tenant add hub.yaml acme --edges 40 --reason "contract 17"
    """
    from weft.cloud_hub.declared import changes

    quotas, _ = _quotas(given)
    declare(config_file, lambda _: changes.set_tenant(name, quotas, is_new=True), by, reason)
    click.echo(f"declared tenant {name}")


@command.command("set")
@config_argument
@click.argument("name")
@quota_options
@reason_option
@by_option
def set_quotas(config_file: str, name: str, *, reason: str, by: str | None, **given: str | None) -> None:
    """Change quotas of tenant NAME at the hubs of CONFIG. Others stay as they are; `none` takes one back."""
    from weft.cloud_hub.declared import changes

    quotas, cleared = _quotas(given)
    if not any(value is not None for value in given.values()):
        raise Refused("nothing to set: give a quota, such as --edges 40")
    declare(config_file, lambda _: changes.set_tenant(name, quotas, cleared, is_new=False), by, reason)
    click.echo(f"changed tenant {name}")


@command.command()
@config_argument
@click.argument("name")
@reason_option
@by_option
def remove(config_file: str, name: str, *, reason: str, by: str | None) -> None:
    """Withdraw tenant NAME at the hubs of CONFIG. Its tokens in the cluster log must be withdrawn before.

    Its records, streams and tables stay.
    """
    from weft.cloud_hub.declared import changes

    declare(config_file, lambda _: changes.remove_tenant(name), by, reason)
    click.echo(f"withdrew tenant {name}")


@command.command("list")
@config_argument
@json_option
def list_tenants(config_file: str, *, as_json: bool) -> None:
    """List the tenants in the cluster log of CONFIG, with quotas, tokens, and streams with declared edges."""
    found = _views(read_facts(config_file))
    if as_json:
        print_json(found)
        return
    quotas = list(_OPTIONS)
    titles = (name.replace("_", " ") for name in quotas)
    print_table(
        ("tenant", *titles, "tokens", "streams with edges", "changed", "by", "reason"),
        [
            (
                each["name"], *("" if each["quotas"][name] is None else each["quotas"][name] for name in quotas),
                each["tokens"], each["streams_with_edges"], each["changed"], each["by"], each["reason"],
            )
            for each in found
        ],
    )  # fmt: skip


def _views(state: ClusterState) -> list[dict[str, Any]]:
    from weft.cloud_hub.api.views import moment
    from weft.cloud_hub.declared.documents import (
        STREAM,
        TENANT,
        TOKEN,
        Quotas,
        TenantDocument,
        TokenDocument,
        UnreadableDocument,
        decode,
        parse_stream_name,
    )

    tokens: list[str] = []
    for fact in state.facts(TOKEN).values():
        try:
            tokens.append(decode(fact.document, TokenDocument).tenant)
        except UnreadableDocument:
            continue
    streams = [parse_stream_name(name)[0] for name in state.facts(STREAM)]
    found = []
    for name, fact in sorted(state.facts(TENANT).items()):
        try:
            quotas, why = decode(fact.document, TenantDocument).quotas, None
        except UnreadableDocument as error:
            quotas, why = Quotas(), str(error)
        found.append({
            "name": name,
            "quotas": {each: getattr(quotas, each) for each in _OPTIONS},
            "tokens": tokens.count(name),
            "streams_with_edges": streams.count(name),
            "version": fact.version,
            "changed": moment(fact.at),
            "by": fact.by,
            "reason": fact.reason,
            "unusable": why,
        })  # fmt: skip
    return found


def _quotas(given: dict[str, str | None]) -> tuple[Quotas, frozenset[str]]:
    """Return the quotas of the options, and the names of those to take back."""
    from weft.cloud_hub.declared.documents import Quotas

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
