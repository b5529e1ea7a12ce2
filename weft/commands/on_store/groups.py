"""``weft hub group``: groups of edges in the cluster log."""

from __future__ import annotations

from typing import Any

import click

from weft.commands.common import config_argument, json_option
from weft.commands.on_store.declaring import declare, read_facts
from weft.commands.on_store.opening import by_option, reason_option
from weft.commands.on_store.stream import key_of
from weft.output import Refused, counted, print_json, print_table

EDGES_SHOWN_MAX = 8


@click.group("group")
def hub_group_group() -> None:
    """Manage groups of edges in a hub's store, whether nodes run or not.

    A group is a list of names and patterns, also of edges that have not linked yet. Running hubs know a change two
    seconds later.
    """


@hub_group_group.command("set")
@config_argument
@click.argument("group", metavar="[TENANT/]GROUP")
@click.argument("edges", nargs=-1, required=True)
@click.option(
    "--order",
    type=click.IntRange(-1000, 1000),
    help="Place among the groups of an edge; what is declared for a later group wins. 0 by default.",
)
@reason_option
@by_option
def set_group(
    config_file: str, group: str, edges: tuple[str, ...], *, order: int | None, reason: str, by: str | None
) -> None:
    """Declare GROUP, or replace its EDGES, at the hubs of CONFIG.

    EDGES are names, or patterns in which `*` stands for any characters.

    \b
    weft hub group set hub.yaml acme/presses 'press-*' welder-1
    """
    from weft.cloud_hub.declared import groups
    from weft.cloud_hub.declared.changes import CannotDeclare

    key = key_of(group)
    try:
        decision = groups.set_group(key, edges, order)
    except CannotDeclare as error:
        raise Refused(str(error)) from None
    declare(config_file, lambda _: decision, by, reason)
    click.echo(f"declared group {'/'.join(key)}: {counted(len(set(edges)), 'name')}")


@hub_group_group.command("remove")
@config_argument
@click.argument("group", metavar="[TENANT/]GROUP")
@reason_option
@by_option
def remove_group(config_file: str, group: str, *, reason: str, by: str | None) -> None:
    """Withdraw GROUP at the hubs of CONFIG. Its edges stay as they are."""
    from weft.cloud_hub.declared import groups

    key = key_of(group)
    declare(config_file, lambda _: groups.remove_group(key), by, reason)
    click.echo(f"withdrew group {'/'.join(key)}")


@hub_group_group.command("list")
@config_argument
@json_option
def list_groups(config_file: str, *, as_json: bool) -> None:
    """List the groups in the cluster log of CONFIG, in the order in which a later one wins."""
    from weft.cloud_hub.api.views import moment
    from weft.cloud_hub.declared.documents import GROUP, GroupDocument, parse_stream_name
    from weft.cloud_hub.declared.groups import Groups

    state = read_facts(config_file)
    known = Groups.of(state)
    found: list[dict[str, Any]] = []
    for name, fact in state.facts(GROUP).items():
        key = parse_stream_name(name)
        document = known.document(key) or GroupDocument(())
        found.append({
            "tenant": key[0],
            "name": key[1],
            "order": document.order,
            "edges": list(document.edges),
            "version": fact.version,
            "changed": moment(fact.at),
            "by": fact.by,
            "reason": fact.reason,
            "unusable": known.unusable.get(name),
        })  # fmt: skip
    found.sort(key=lambda each: (each["tenant"], each["order"], each["name"]))
    if as_json:
        print_json(found)
        return
    print_table(
        ("group", "order", "edges", "changed", "by", "reason"),
        [
            (
                f"{each['tenant']}/{each['name']}", each["order"], _shown(each["edges"], each["unusable"]),
                each["changed"], each["by"], each["reason"],
            )
            for each in found
        ],
    )  # fmt: skip


def _shown(edges: list[str], unusable: str | None) -> str:
    if unusable is not None:
        return f"this release cannot read it: {unusable}"
    more = len(edges) - EDGES_SHOWN_MAX
    return " ".join(edges[:EDGES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
