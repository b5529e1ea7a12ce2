"""Ways of a command to a hub.

| what the command does | its way | HUB |
|---|---|---|
| an operation on the hub as a whole, such as tokens | ``administration_of`` | CONFIG: its store; URL or login |
| a look at what runs: status, streams, records | ``running.running_hub`` | CONFIG: this machine's; URL or login |
| read the store | ``on_store`` | CONFIG |
| change facts that are no operation | ``declare``, ``declare_all``; ``changing`` with objects beside them | CONFIG |
| change chunks, tables or ``cluster.json`` | ``acting``: a line of acts before and one after | CONFIG |
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from weft.client.operations import Operations, Request
from weft.cloud_hub.administration import Administration
from weft.cloud_hub.auth.tokens import TokensUnusable
from weft.cloud_hub.clock import ClockWrong, HubClock, sound_clock
from weft.cloud_hub.cluster import node_views
from weft.cloud_hub.facts.acts import line
from weft.cloud_hub.facts.approvals import ACTS, AskedAct, NeedsApproval, allow
from weft.cloud_hub.facts.fact import CannotDeclare, noting
from weft.cloud_hub.facts.hub import DeclaredRegions
from weft.commands.acts import command_options, command_words, origin
from weft.commands.common import (
    config_argument,
    decided,
    json_option,
    load_hub,
    open_hub_store,
    store_trouble,
    user_name,
)
from weft.commands.hub_settings import settings_of
from weft.commands.running import (
    CA_FILE,
    NOT_FOUND,
    TOO_MANY,
    NotThere,
    RunningHub,
    access_options,
    any_hub_argument,
    named,
    names_a_config,
    running_hub,
)
from weft.config.units import is_bucket
from weft.hub_api.acts import ACTS_MAX, ActLine
from weft.hub_api.answers import ApiError, moment_after
from weft.hub_api.operation import Operation
from weft.hub_api.operations import operation_of
from weft.hub_api.status import NodesAnswer
from weft.output import Failed, Refused, counted, harmless, print_json, print_table
from weft.protocols.errors import CodecError
from weft.storage import hub_keys
from weft.storage.chunk_log import BOOT_CLOCK
from weft.storage.cluster import NEW_SHARDS, ClusterCache, ClusterUnusable, open_cluster, read_cluster
from weft.storage.cluster_log import Author, ChangeRefused, ClusterLog, Contended
from weft.storage.object_store import NotFound, ObjectStore, StoreError, StoreUnfit
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.probe import probe_in_sequence, read_only
from weft.storage.presence import running

if TYPE_CHECKING:
    from weft.cloud_hub.facts.fact import Decision
    from weft.config.models import HubConfig
    from weft.storage.cluster_log import ClusterState, Declaration


T = TypeVar("T")
P = ParamSpec("P")
Act = AbstractAsyncContextManager[tuple[ObjectStore, Callable[[], int]]]
"""Gives the store, and a clock that was held against the store's: nanoseconds since 1970."""
FactChange = AbstractAsyncContextManager[tuple[ObjectStore, ClusterLog, Author]]
decision_options = decided("recorded in the cluster log")


def no_other_author(by: str | None) -> None:
    """Refuse the option ``--by`` at a running hub: the name of the token is that of the author.

    Raises:
        Refused: it was given.
    """
    if by is not None:
        raise Refused("--by is for a configuration: a running hub writes down the name of the token")


def on_store(
    config_file: str, read: Callable[Concatenate[ObjectStore, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return what ``read`` finds in the store of a configuration, which it cannot change. Report errors as ``opened``.

    Args:
        args, kwargs: those of ``read`` behind the store.
    """
    return asyncio.run(_read(config_file, read, *args, **kwargs))


async def _read(
    config_file: str, read: Callable[Concatenate[ObjectStore, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> T:
    async with opened(load_hub(config_file)) as store:
        return await read(read_only(store), *args, **kwargs)


@asynccontextmanager
async def opened(config: HubConfig) -> AsyncIterator[ObjectStore]:
    """Open the store of a configuration, and report the errors of its use.

    Raises:
        Failed: the store cannot be used or does not answer, or this machine's clock is wrong.
    """
    uri = config.store
    try:
        yield open_hub_store(uri)
    except (ClusterUnusable, StoreUnfit) as error:
        raise Failed(f"{uri}: {error}") from None
    except ClockWrong as error:
        raise Failed(f"nothing was written: {error}") from None
    except StoreError as error:
        raise Failed(f"{uri}: {store_trouble(uri, error)}") from None


@asynccontextmanager
async def acting(
    config_file: str, target: str, by: str | None, reason: str
) -> AsyncIterator[tuple[ObjectStore, Callable[[], int]]]:
    """Open the store of a configuration for an act that changes it, between two lines of the cluster log: one before
    the act, one with its end. Report errors as ``opened``. An act that needs a second person is asked for first.

    Args:
        target: the part of the hub that it changes, for people.
        by: name of the person who decided, if it is not the user of this process.

    Raises:
        Failed: the line before the act cannot be written, or another person has to approve it. Nothing was done.
    """
    from weft.cloud_hub.facts import acts

    async with opened(load_hub(config_file)) as store, AsyncExitStack() as lines:
        try:
            log = await open_log(store)
            clock = await sound_clock(store)
            author = author_of(clock(), by, reason)
            act_id = await _allowed(store, log, target, author) or secrets.token_hex(8)
            await lines.enter_async_context(acts.acting(log, act_id, target, author, clock))
        except (ChangeRefused, Contended, CodecError, CannotDeclare) as error:
            why = "" if isinstance(error, CannotDeclare) else ", as the cluster log cannot record it"
            raise Failed(f"nothing was done{why}: {error}") from None
        yield store, clock


@asynccontextmanager
async def changing(
    config_file: str, by: str | None, reason: str, target: str = ""
) -> AsyncIterator[tuple[ObjectStore, ClusterLog, Author]]:
    """Open the store of a configuration to change facts of the cluster log, and objects that belong to them: the facts'
    entries are the lines of the act. Report errors as ``opened``. A change that needs a second person is asked for
    first.

    Args:
        target: of such a change, for people.
    """
    async with opened(load_hub(config_file)) as store:
        log, author = await open_log(store), author_of((await sound_clock(store))(), by, reason)
        await _allowed(store, log, target, author)
        yield store, log, author


def author_of(at: int, by: str | None, reason: str) -> Author:
    """Return the author of an act: this process, with the words of its command.

    Args:
        at: nanoseconds since 1970.
    """
    return Author(at, by or f"{user_name()}@{platform.node()}", reason, origin(), command_words())


def begin(config_file: str, decisions: Sequence[Decision], by: str | None, reason: str) -> bool:
    """Make the store of a configuration, as the first start of a hub does, so that something can be declared before.
    Say that it was made: the address may be wrong.

    Args:
        decisions: those that are declared next. If the new store would refuse one, it is not made.

    Returns:
        Whether it was new.

    Raises:
        Refused: the hub's user could not read what this one writes.
        Failed: the store breaks its promises, or does not answer.
        Refused, Failed: as ``declaring``, for a decision that a new store would refuse.
    """
    return asyncio.run(_begin(load_hub(config_file), decisions, by, reason))


async def _begin(config: HubConfig, decisions: Sequence[Decision], by: str | None, reason: str) -> bool:
    async with opened(config) as store:
        with suppress(NotFound):
            await store.get(hub_keys.CLUSTER)
            return False
        with declaring():  # in a store in memory, which has as few facts as the new one
            await ClusterLog(MemoryStore(), bytes(16)).append_all(decisions, author_of(0, by, reason))
        _refuse_root(config.store)
        shards = config.shards or NEW_SHARDS
        await probe_in_sequence(store)
        await open_cluster(store, None, new_shards=shards)
        click.echo(f"created a new store: {config.store}, {counted(shards, 'shard')}", err=True)
        return True


def _refuse_root(uri: str) -> None:
    """Refuse to make a store as root in the folder of another user, who runs the hub and could not read it."""
    if is_bucket(uri) or "://" in uri.removeprefix("file://") or os.geteuid() != 0:
        return
    folder = os.path.abspath(uri.removeprefix("file://"))
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    owner = os.stat(folder).st_uid
    if owner != 0:
        raise Refused(
            f"{folder} belongs to user {owner}, who could not read what root writes into it. Run the command as that "
            f"user: `sudo -u '#{owner}' weft ...`"
        )


async def open_log(store: ObjectStore) -> ClusterLog:
    """Return the cluster log of a store."""
    return ClusterLog(store, (await open_cluster(store, None)).cluster_id)


async def load_facts(store: ObjectStore) -> ClusterState:
    """Return the facts of the cluster log of a store."""
    return await (await open_log(store)).load()


async def _allowed(store: ObjectStore, log: ClusterLog, target: str, author: Author) -> str | None:
    """Return the id of an act that others had to approve, and have; None for one that needs no approval."""
    if author.command not in ACTS:
        return None
    try:
        return await allow(store, log, AskedAct(author.command, target, command_options()), author)
    except NeedsApproval as error:
        raise Failed(str(error)) from None


# A hub as commands administer it: one that runs, or the store of a configuration, by the same operations.


class StoreHub(Operations):
    """The hub of a configuration on this machine, by its store, whether its processes run or not. A method of an
    operation on the hub as a whole raises ``Failed`` where a running hub would refuse it.

    Args:
        by: author of changes, if it is not the user of this process.
    """

    def __init__(self, config_file: str, by: str | None) -> None:
        self._config, self._by = load_hub(config_file), by
        self._read: ClusterState | None = None
        """Facts as the last request has read them."""

    def _answer(self, request: Request[T], /) -> T:
        operation, texts = operation_of(request.method or ("GET" if request.body is None else "POST"), request.path)
        answer: Any = asyncio.run(self._perform(operation, texts, request.body))
        return answer  # type: ignore[no-any-return]  # of the type that the operation declares

    async def _perform(self, operation: Operation, texts: Mapping[str, str], body: bytes | None) -> Any:
        clock = HubClock(time.time_ns, BOOT_CLOCK)
        async with opened(self._config) as store:
            if operation.name == "nodes":  # also while an upgrade is half done, when the log may be of a later release
                return await _nodes(read_only(store))
            cluster = await open_cluster(store, None)
            if operation.method != "get":  # only now: it writes, and there may have been no hub
                await clock.measure(store)
                clock.sound()
            # A page of a list continues in the facts of the page before.
            if (state := self._read) is None or "after" not in texts:
                try:
                    state = await ClusterLog(store, cluster.cluster_id).load()
                except CodecError as error:
                    raise Failed(str(error)) from None
                if self._read is None:
                    _warn(state)
                self._read = state
            orders = DeclaredRegions()
            orders.refresh(state)
            administration = Administration(
                read_only(store) if operation.method == "get" else store,
                _ReadLog(store, state),
                clock,
                settings_of(self._config),
                ClusterCache(cluster),
                orders=orders,
                known=lambda: state,
            )
            try:
                return await administration.perform(
                    operation, texts, body, lambda reason: author_of(clock.sound(), self._by, reason)
                )
            except ApiError as error:
                # Advice on a request is in the words of HTTP; that on a store or a busy process serves here, too.
                advice = f"; {error.advice}" if error.status >= TOO_MANY else ""
                raise (NotThere if error.status == NOT_FOUND else Failed)(f"{error.error}{advice}") from None


class _ReadLog(ClusterLog):
    """The cluster log, whose facts were read a moment ago."""

    def __init__(self, store: ObjectStore, state: ClusterState) -> None:
        super().__init__(store, state.cluster_id)
        self._state: ClusterState | None = state

    async def load(self) -> ClusterState:
        """Return these facts, once."""
        state, self._state = self._state, None
        return await super().load() if state is None else state


async def _nodes(store: ObjectStore) -> NodesAnswer:
    now = time.time_ns()
    found = await running(store, now)
    return NodesAnswer(nodes=node_views(found, await read_cluster(store) if found else None, now))


def administration_of(hub: str | None, token_file: str | None, by: str | None = None) -> RunningHub | StoreHub:
    """Return the hub that a command's HUB names: by its store where that is a configuration on this machine.

    Args:
        by: author of changes, if it is not the user of this process.

    Raises:
        Refused: ``by`` is given for a running hub, where the name of the token is that of the author, or a token or
            authorities for the store of a configuration, which needs none.
    """
    if names_a_config(hub):
        authorities = click.get_current_context().meta.get(CA_FILE)
        for option, given in (("--token-file", token_file), ("--ca-file", authorities)):
            if given is not None:
                raise Refused(
                    f"{option} is for the URL of a hub or a login: the command opens the store of {named(hub)}"
                )
        return StoreHub(named(hub), by)
    no_other_author(by)
    return running_hub(hub, token_file)


# ``weft hub acts``: the record of administrative acts, from a running hub.

LAST_MAX = 10_000
WHAT_SHOWN_MAX = 200
"""Longest text of what an act changed in a table: of a thousand facts, the first. JSON has all of it."""


@click.command()
@any_hub_argument
@click.option("--last", type=click.IntRange(1, LAST_MAX), default=20, show_default=True, help="Number of lines.")
@click.option("--after", type=click.IntRange(0), help="All lines after this one, instead of the newest.")
@access_options("an admin token")
@json_option
def acts(hub: str | None, *, last: int, after: int | None, token_file: str | None, as_json: bool) -> None:
    """Show who did what at the running hub HUB, when, from where and why, the oldest first.

    Each administrative act leaves a line before it is reported as done. Other acts than changes of facts leave two: one
    when they begin, one with their end. An act without an end was interrupted. `weft hub declarations` shows the lines
    without a running hub.

    \b
    weft hub acts hub.yaml --last 50
    weft hub acts hub.yaml --after 1200 --json
    """
    running = running_hub(hub, token_file)
    if after is None:
        after = max(0, running.acts(limit=1).last - last)
    page = running.acts(after=str(after), limit=ACTS_MAX)
    found = page.acts
    while page.next_after is not None:
        page = running.acts(after=page.next_after, limit=ACTS_MAX)
        found += page.acts
    if as_json:
        print_json({"acts": found, "last": page.last})
        return
    print_lines(found)


def print_lines(found: Sequence[ActLine]) -> None:
    """Print lines of the record as a table."""
    rows = [[harmless(str(cell)) for cell in _row(each)] for each in found]
    print_table(("line", "at", "by", "from", "act", "what", "why"), rows)


def _row(each: ActLine) -> tuple[object, ...]:
    fact = f"{each.kind} {each.name}" if each.kind else ""
    is_several = each.target.startswith(f"{each.name}, ")
    what = f"{each.kind} {each.target}" if is_several else each.target or fact
    if len(what) > WHAT_SHOWN_MAX:
        what = f"{what[:WHAT_SHOWN_MAX]} ..."
    act = f"{each.act}: {each.command}" if each.command else each.act
    origin = each.origin if each.origin != each.by else ""
    return each.entry, (each.at or "")[:19].replace("T", " "), each.by, origin, act, what, each.reason


# Facts of the cluster log, read and declared by commands, whether nodes run or not.


def read_facts(config_file: str) -> ClusterState:
    """Return the facts of the cluster log of a configuration's store, after a warning of what cannot be read of it."""
    try:
        state = on_store(config_file, load_facts)
    except CodecError as error:
        raise Failed(str(error)) from None
    _warn(state)
    return state


@click.command("declarations")
@config_argument
@click.option("--last", type=click.IntRange(1, LAST_MAX), default=20, show_default=True, help="Number of entries.")
@json_option
def declarations(config_file: str, *, last: int, as_json: bool) -> None:
    """Show the newest entries of the cluster log of CONFIG: who declared or withdrew what, when and why.

    They are the record of administrative acts, and are never deleted. Documents of facts are not shown. `weft hub acts`
    asks a running hub for them.
    """
    try:
        found = on_store(config_file, _newest, last)
    except CodecError as error:
        raise Failed(str(error)) from None
    rows = [line(each.n, each) for each in found]
    if as_json:
        print_json(rows)
    else:
        print_lines(rows)


async def _newest(store: ObjectStore, last: int) -> list[Declaration]:
    log = await open_log(store)
    state = await log.load()
    _warn(state)
    return await log.newest(state, last)


def declare(config_file: str, decision: Decision, by: str | None, reason: str) -> ClusterState:
    """Change a fact. Return the facts with the change; running hubs know it two seconds later."""
    return _declare(config_file, [decision], by, reason)


def declare_all(config_file: str, decisions: Sequence[Decision], by: str | None, reason: str) -> list[bool]:
    """Change facts in as few entries as hold them: a thousand tokens are one. Of one entry all are changed or none;
    those of entries before an error remain changed.

    Returns:
        For each decision, whether it changed something.
    """
    noted, changed = noting(decisions)
    _declare(config_file, noted, by, reason)
    return changed


def _declare(config_file: str, decisions: Sequence[Decision], by: str | None, reason: str) -> ClusterState:
    with declaring():
        state = asyncio.run(_append(changing(config_file, by, reason), decisions))
    _warn(state)
    return state


async def _append(change: FactChange, decisions: Sequence[Decision]) -> ClusterState:
    async with change as (_, log, author):
        return await log.append_all(decisions, author)


@contextmanager
def declaring() -> Iterator[None]:
    """Report why something cannot be declared.

    Raises:
        Refused: a token is not valid.
        Failed: another fact is not, or does not fit those that are declared; or the cluster log does not take it.
    """
    try:
        yield
    except TokensUnusable as error:
        raise Refused(str(error)) from None
    except (CannotDeclare, ChangeRefused, Contended, CodecError) as error:
        raise Failed(f"it was not declared: {error}") from None


def end_of(text: str | None, now: int, option: str) -> int | None:
    """Return the moment that an option gives as a duration from now on, or as a date.

    Raises:
        Refused: it is neither, or in the past.
    """
    if text is None:
        return None
    try:
        return moment_after(text, now)
    except ValueError as error:
        raise Refused(f"{option}: {error}") from None


def _warn(state: ClusterState) -> None:
    for each in state.skipped:
        click.echo(f"warning: entry {each.n} of the cluster log is passed over: {each.why}", err=True)
