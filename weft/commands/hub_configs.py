"""``weft hub config``: configurations of edges and groups in the cluster log, and their rollouts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from weft.cloud_hub.facts import edges as edge_configs
from weft.cloud_hub.facts.edges import DesiredConfigs, GroupDocument, Groups, RolloutDocument
from weft.cloud_hub.facts.fact import GROUP, CannotDeclare, parse_stream_name
from weft.commands.common import config_argument, json_option
from weft.commands.hub_access import decision_options, declare, on_store, read_facts
from weft.commands.hub_streams import key_of
from weft.config.signing import SignatureUnreadable, read_signed
from weft.hub_api.answers import moment
from weft.output import Failed, Refused, counted, print_json, print_table
from weft.protocols.link import ConfigOutcome

if TYPE_CHECKING:
    from weft.cloud_hub.facts.edges import ConfigDocument, ConfigKey
    from weft.cloud_hub.rollouts import RolloutProgress, States
    from weft.storage.cluster_log import ClusterState


TEXT_BYTES_MAX = 1 << 20
SHOWN_MAX = 200
_TAKES_NONE = "takes none"
whose_argument = click.argument("whose", metavar="[TENANT/]NAME")
group_option = click.option("--group", "is_group", is_flag=True, help="NAME is a group of edges, not an edge.")


def _key(whose: str, *, is_group: bool) -> ConfigKey:
    tenant, name = key_of(whose)
    return tenant, "group" if is_group else "edge", name


@click.command("set")
@config_argument
@whose_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@group_option
@click.option("--share", metavar="PERCENT", help="Start a rollout with this share of the group's edges, such as 10%.")
@click.option(
    "--steps",
    metavar="PERCENT,...",
    help="Shares that follow by themselves, such as 50%,100%: each when nine of ten edges have confirmed.",
)
@click.option(
    "--failures",
    type=click.IntRange(1, 1_000_000),
    default=1,
    show_default=True,
    help="Number of edges that refuse or revert the settings at which the rollout stops.",
)
@click.option(
    "--again",
    is_flag=True,
    help="Declare the settings even if they are unchanged: edges that refused or reverted them try again.",
)
@decision_options
def set_config(
    config_file: str,
    whose: str,
    file: str,
    *,
    is_group: bool,
    share: str | None,
    steps: str | None,
    failures: int,
    again: bool,
    reason: str,
    by: str | None,
) -> None:
    """Declare the settings in FILE for an edge, or with --group for a group, at the hubs of CONFIG.

    FILE is YAML with sections of an edge's configuration: streams, links, sources, unrouted, sparkplug, disk,
    commit_interval, state, queues, limits. Mappings are merged with those of the edge's file; everything else,
    including lists, replaces what the file has. Settings of an edge win over those of its groups, and those of a later
    group over those of an earlier one (`weft hub group`).

    \b
    weft hub config set hub.yaml acme/presses presses.yaml --group --share 10% --steps 50%,100%
    """
    key = _key(whose, is_group=is_group)
    with open(file, "rb") as source:
        data = source.read(TEXT_BYTES_MAX)
    rollout = None
    if share is not None:
        following = tuple(sorted(_percent(each, "--steps") for each in steps.split(","))) if steps else ()
        rollout = RolloutDocument(_percent(share, "--share"), steps=following, failures_max=failures)
    elif steps:
        raise Refused("--steps needs --share, the first of them")
    try:
        text = data.decode()
        _check_whose(text, key)
        decision = edge_configs.set_config(key, text, rollout, again=again)
    except UnicodeDecodeError:
        raise Refused(f"{file}: expected UTF-8 text. Save the file as UTF-8") from None
    except (CannotDeclare, SignatureUnreadable) as error:
        raise Refused(f"{file}: {error}") from None
    state = declare(config_file, decision, by, reason)
    click.echo(f"declared version {_document(state, key).revision} for {' '.join(key[1:])} of tenant {key[0]}")


def _check_whose(text: str, key: ConfigKey) -> None:
    """Refuse a mistake that each edge would refuse: settings that are signed for someone else. The signature itself is
    for edges alone to check."""
    signed = read_signed(text)
    target = " ".join(key[1:])
    if signed is not None and (signed.statement.tenant, signed.statement.target) != (key[0], target):
        raise SignatureUnreadable(
            f"it is signed for {signed.statement.target} of tenant {signed.statement.tenant}, not for {target} of "
            f"tenant {key[0]}. Sign it with `weft config sign FILE --key KEY --for NAME`"
        )


@click.command("remove")
@config_argument
@whose_argument
@group_option
@decision_options
def remove_config(config_file: str, whose: str, *, is_group: bool, reason: str, by: str | None) -> None:
    """Withdraw the settings of an edge or a group: its edges return to the settings of their files and other groups."""
    key = _key(whose, is_group=is_group)
    declare(config_file, edge_configs.remove_config(key), by, reason)
    click.echo(f"withdrew the settings of {' '.join(key[1:])} of tenant {key[0]}")


@click.command()
@config_argument
@whose_argument
@group_option
def get(config_file: str, whose: str, *, is_group: bool) -> None:
    """Print the settings of an edge as they are laid over its file, in their order; with --group those of a group."""
    state, key = read_facts(config_file), _key(whose, is_group=is_group)
    if is_group:
        document = _document(state, key)
        click.echo(f"# group {key[2]}, version {document.revision}\n{document.text or ''}")
        return
    groups = Groups.of(state)
    configs = DesiredConfigs(groups)
    configs.refresh(state)
    desired = configs.of_edge(key[0], key[2])
    if desired is None:
        raise Failed("part of the edge's settings cannot be read: it keeps its current ones. See `weft hub status`")
    if not desired.layers:
        raise Failed(f"nothing is declared for edge {key[2]} of tenant {key[0]}: its own file applies")
    for layer in desired.layers:
        click.echo(f"# {layer.name}, version {layer.version}\n{layer.text}")


@click.command()
@config_argument
@click.option("--tenant", help="Only edges of this tenant.")
@click.option("--failed", is_flag=True, help="Show only edges that refused or reverted their settings.")
@json_option
def status(config_file: str, *, tenant: str | None, failed: bool, as_json: bool) -> None:
    """Show the configuration state that edges of CONFIG's hubs report, failures first.

    An edge is listed when it has reported since settings were declared for it. `desired` is the version that the edge
    is to have, `active` the one in force; 0 is the edge's own file.
    """
    state, states = read_facts(config_file), _states(config_file)
    groups = Groups.of(state)
    configs = DesiredConfigs(groups)
    configs.refresh(state)
    rows: list[dict[str, Any]] = []
    for node, said in states.items():
        if (tenant is not None and node.tenant != tenant) or (failed and not said.has_failed):
            continue
        desired = configs.of_edge(*node)
        rows.append(
            {
                "tenant": node.tenant,
                "edge": node.edge,
                "desired": None if desired is None else desired.version,
                "active": said.active_version,
                "outcome": _outcome(said.outcome, is_about=desired is not None and said.digest == desired.digest),
                "reason": said.reason,
                "at": moment(said.at),
            }
        )
    rows.sort(key=lambda row: (row["outcome"] not in ("refused", "rolled back"), row["tenant"], row["edge"]))
    if as_json:
        print_json(rows)
        return
    titles = ("tenant", "edge", "desired", "active", "outcome", "at", "reason")
    shown = [tuple("" if row[title] is None else row[title] for title in titles) for row in rows[:SHOWN_MAX]]
    print_table(titles, shown)
    if len(rows) > SHOWN_MAX:
        click.echo(f"and {len(rows) - SHOWN_MAX} more; --json shows all")


@click.command("list")
@config_argument
@json_option
def list_rollouts(config_file: str, *, as_json: bool) -> None:
    """List the rollouts of CONFIG, with the state that their edges report."""
    state, states = read_facts(config_file), _states(config_file)
    rows: list[dict[str, Any]] = []
    for key, document in _documents(state).items():
        if document.rollout is None:
            continue
        found = _progress(state, states, key, document)
        rows.append(
            {
                "tenant": key[0],
                "group": key[2],
                "version": document.revision,
                "share": document.rollout.share,
                "state": document.rollout.state,
                "confirmed": found.confirmed,
                "on_trial": found.on_trial,
                "failed": len(found.failed),
                "waiting": found.waiting,
                "why": document.rollout.why,
            }
        )
    if as_json:
        print_json(rows)
        return
    titles = ("tenant", "group", "version", "share", "state", "confirmed", "on_trial", "failed", "waiting", "why")
    print_table(titles, [tuple(f"{row[t]:.0%}" if t == "share" else row[t] for t in titles) for row in rows])


@click.command("next")
@config_argument
@whose_argument
@click.option("--share", metavar="PERCENT", default="100%", show_default=True, help="Share of the edges from now on.")
@decision_options
def next_step(config_file: str, whose: str, *, share: str, reason: str, by: str | None) -> None:
    """Extend the rollout of group NAME to a larger share of its edges, also after it stopped by itself.

    Earlier failures no longer count. With the same share as before, a stopped rollout resumes.
    """
    key, wanted = _key(whose, is_group=True), _percent(share, "--share")
    state, states = read_facts(config_file), _states(config_file)
    failures = len(_progress(state, states, key, _document(state, key)).failed)
    declare(config_file, edge_configs.widen(key, wanted, failures), by, reason)
    click.echo(f"the rollout of group {key[2]} continues with {wanted:.0%} of its edges")


@click.command("abort")
@config_argument
@whose_argument
@decision_options
def abort(config_file: str, whose: str, *, reason: str, by: str | None) -> None:
    """Abort the rollout of group NAME: its edges return to the previous settings."""
    key = _key(whose, is_group=True)
    declare(config_file, edge_configs.abort(key, reason), by, reason)
    click.echo(f"aborted the rollout of group {key[2]}: its edges return to the previous settings")


def _percent(text: str, option: str) -> float:
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise Refused(f"{option}: expected shares such as 10%, got {text!r}")
    return share


def _outcome(number: int, *, is_about: bool) -> str:
    from weft.cloud_hub.rollouts import TAKES_NONE

    if number == TAKES_NONE:
        return _TAKES_NONE
    if not is_about:
        return "not told yet"
    try:
        return ConfigOutcome(number).name.lower().replace("_", " ").replace("none", "its own file")
    except ValueError:
        return f"{number}, of a later release"


def _states(config_file: str) -> States:
    from weft.cloud_hub.rollouts import read_states

    return on_store(config_file, read_states)


def _documents(state: ClusterState) -> dict[ConfigKey, ConfigDocument]:
    configs = DesiredConfigs(Groups.of(state))
    configs.refresh(state)
    found: dict[ConfigKey, ConfigDocument] = {}
    for name, document in sorted(configs.documents.items()):
        tenant, of, rest = name.split("/", 2)
        found[tenant, of, rest] = document
    return found


def _document(state: ClusterState, key: ConfigKey) -> ConfigDocument:
    document = _documents(state).get(key)
    if document is None:
        raise Failed(f"nothing is declared for {' '.join(key[1:])} of tenant {key[0]}")
    return document


def _progress(state: ClusterState, states: States, key: ConfigKey, document: ConfigDocument) -> RolloutProgress:
    from weft.cloud_hub.rollouts import progress_of

    groups = Groups.of(state)
    configs = DesiredConfigs(groups)
    configs.refresh(state)
    return asyncio.run(progress_of(key, document, configs, groups, states))


# ``weft hub group``: groups of edges in the cluster log.

EDGES_SHOWN_MAX = 8


@click.command("set")
@config_argument
@click.argument("group", metavar="[TENANT/]GROUP")
@click.argument("edges", nargs=-1, required=True)
@click.option(
    "--order",
    type=click.IntRange(-1000, 1000),
    help="Order among the groups of an edge; settings of a group with a higher number win. 0 by default.",
)
@decision_options
def set_group(
    config_file: str, group: str, edges: tuple[str, ...], *, order: int | None, reason: str, by: str | None
) -> None:
    """Declare GROUP, or replace its EDGES, at the hubs of CONFIG.

    EDGES are names, or patterns in which `*` matches any characters.

    \b
    weft hub group set hub.yaml acme/presses 'press-*' welder-1
    """
    key = key_of(group)
    try:
        decision = edge_configs.set_group(key, edges, order)
    except CannotDeclare as error:
        raise Refused(str(error)) from None
    declare(config_file, decision, by, reason)
    click.echo(f"declared group {'/'.join(key)}: {counted(len(set(edges)), 'name')}")


@click.command("remove")
@config_argument
@click.argument("group", metavar="[TENANT/]GROUP")
@decision_options
def remove_group(config_file: str, group: str, *, reason: str, by: str | None) -> None:
    """Withdraw GROUP at the hubs of CONFIG. Its edges stay as they are."""
    key = key_of(group)
    declare(config_file, edge_configs.remove_group(key), by, reason)
    click.echo(f"withdrew group {'/'.join(key)}")


@click.command("list")
@config_argument
@json_option
def list_groups(config_file: str, *, as_json: bool) -> None:
    """List the groups in the cluster log of CONFIG, in the order in which a later one wins."""
    state = read_facts(config_file)
    known = Groups.of(state)
    found: list[dict[str, Any]] = []
    for name, fact in state.facts(GROUP).items():
        key = parse_stream_name(name)
        document = known.document(key) or GroupDocument(())
        found.append(
            {
                "tenant": key[0],
                "name": key[1],
                "order": document.order,
                "edges": list(document.edges),
                "version": fact.version,
                "changed": moment(fact.at),
                "by": fact.by,
                "reason": fact.reason,
                "unusable": known.unusable.get(name),
            }
        )
    found.sort(key=lambda each: (each["tenant"], each["order"], each["name"]))
    if as_json:
        print_json(found)
        return
    print_table(
        ("group", "order", "edges", "changed", "by", "reason"),
        [
            (
                f"{each['tenant']}/{each['name']}",
                each["order"],
                _shown(each["edges"], each["unusable"]),
                each["changed"],
                each["by"],
                each["reason"],
            )
            for each in found
        ],
    )


def _shown(edges: list[str], unusable: str | None) -> str:
    if unusable is not None:
        return f"this release cannot read it: {unusable}"
    more = len(edges) - EDGES_SHOWN_MAX
    return " ".join(edges[:EDGES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
