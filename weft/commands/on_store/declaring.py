"""Facts of the cluster log, read and declared by commands, whether nodes run or not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import click

from weft.commands.acts.hub_acts import print_lines
from weft.commands.common import config_argument, json_option
from weft.commands.on_store.opening import declaring, on_store, open_log
from weft.output import Failed, Refused, print_json
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.cloud_hub.declared.changes import Decision
    from weft.storage.cluster_log.entry import Declaration
    from weft.storage.cluster_log.log import Author, Change, ClusterLog
    from weft.storage.cluster_log.state import ClusterState

LAST_MAX = 10_000
"""Maximum number of entries that one command reads."""


def read_facts(config_file: str) -> ClusterState:
    """Return the facts of the cluster log of a configuration's store, after a warning of what cannot be read of it."""
    from weft.protocols.errors import CodecError

    async def work(store: ObjectStore) -> ClusterState:
        return await (await open_log(store)).load()

    try:
        state = on_store(config_file, work)
    except CodecError as error:
        raise Failed(str(error)) from None
    _warn(state)
    return state


def read_entry(config_file: str, n: int) -> Declaration | None:
    """Return an entry of the cluster log; None if there is none that can be read."""
    from weft.protocols.errors import CodecError

    async def work(store: ObjectStore) -> Declaration | None:
        return await (await open_log(store)).entry(n)

    try:
        return on_store(config_file, work)
    except CodecError as error:
        raise Failed(str(error)) from None


@click.command("declarations")
@config_argument
@click.option("--last", type=click.IntRange(1, LAST_MAX), default=20, show_default=True, help="Number of entries.")
@json_option
def declarations(config_file: str, *, last: int, as_json: bool) -> None:
    """Show the newest entries of the cluster log of CONFIG: who declared or withdrew what, when and why.

    They are the record of administrative acts, and are never deleted. Documents of facts are not shown. `weft hub acts`
    asks a running hub for them.
    """
    from weft.cloud_hub.declared.acts.lines import line
    from weft.protocols.errors import CodecError

    async def work(store: ObjectStore) -> list[Declaration]:
        log = await open_log(store)
        state = await log.load()
        _warn(state)
        return await log.newest(state, last)

    try:
        found = on_store(config_file, work)
    except CodecError as error:
        raise Failed(str(error)) from None
    rows = [line(each.n, each) for each in found]
    if as_json:
        print_json(rows)
    else:
        print_lines(rows)


def declare(config_file: str, decision: Callable[[int], Decision], by: str | None, reason: str) -> ClusterState:
    """Change a fact.

    Args:
        decision: returns the decision, given the time: nanoseconds since 1970.

    Returns:
        The facts with the change. Running hubs know it two seconds later.
    """

    async def work(log: ClusterLog, author: Author) -> ClusterState:
        return await log.append(decision(author.at), author)

    return _declaring(config_file, work, by, reason)


def declare_all(config_file: str, decisions: Sequence[Decision], by: str | None, reason: str) -> list[bool]:
    """Change facts in as few entries as hold them: a thousand tokens are one. Of one entry all are changed or none;
    those of entries before an error remain changed.

    Returns:
        For each decision, whether it changed something.
    """
    changed = [False] * len(decisions)

    def noting(at: int, decision: Decision) -> Decision:
        def decide(state: ClusterState) -> Change | None:
            change = decision(state)
            changed[at] = change is not None
            return change

        return decide

    noted = [noting(*each) for each in enumerate(decisions)]

    async def work(log: ClusterLog, author: Author) -> ClusterState:
        return await log.append_all(noted, author)

    _declaring(config_file, work, by, reason)
    return changed


def _declaring(
    config_file: str, work: Callable[[ClusterLog, Author], Awaitable[ClusterState]], by: str | None, reason: str
) -> ClusterState:
    from weft.cloud_hub.api.tokens import TokensUnusable
    from weft.cloud_hub.declared.changes import CannotDeclare
    from weft.protocols.errors import CodecError
    from weft.storage.cluster_log.log import ChangeRefused, Contended

    try:
        state = declaring(config_file, work, by, reason)
    except TokensUnusable as error:
        raise Refused(str(error)) from None
    except (CannotDeclare, ChangeRefused, Contended, CodecError) as error:
        raise Failed(f"it was not declared: {error}") from None
    _warn(state)
    return state


def end_of(text: str | None, now: int, option: str) -> int | None:
    """Return the moment that an option gives as a duration from now on, or as a date.

    Raises:
        Refused: it is neither, or in the past.
    """
    from weft.cloud_hub.api.views import moment_after

    if text is None:
        return None
    try:
        return moment_after(text, now)
    except ValueError as error:
        raise Refused(f"{option}: {error}") from None


def _warn(state: ClusterState) -> None:
    for each in state.skipped:
        click.echo(f"warning: entry {each.n} of the cluster log is passed over: {each.why}", err=True)
