"""The store of a hub's configuration, for commands that read it, and for acts that change it and leave a line."""

from __future__ import annotations

import asyncio
import platform
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from weft.commands.acts.authors import command_options, command_words, origin
from weft.commands.common import load_hub, open_hub_store, store_trouble, user_name
from weft.output import Failed, Refused
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.storage.cluster_log.log import Author, ClusterLog

T = TypeVar("T")
Work = Callable[[ObjectStore], Awaitable[T]]
reason_option = click.option("--reason", default="", help="Why, in a few words; recorded in the cluster log.")
by_option = click.option("--by", help="Name of the person who decided; user and machine of this process by default.")


def no_other_author(by: str | None) -> None:
    """Refuse the option ``--by`` at a running hub: the name of the token is that of the author.

    Raises:
        Refused: it was given.
    """
    if by is not None:
        raise Refused("--by is for a configuration: a running hub writes down the name of the token")


def on_store(config_file: str, work: Work[T]) -> T:
    """Run ``work`` with the store of a configuration, which it cannot change, and report its errors."""
    from weft.storage.object_store.reading import read_only

    return _with_store(config_file, lambda store: work(read_only(store)))


def acting(config_file: str, target: str, work: Work[T], by: str | None, reason: str) -> T:
    """Run ``work``, which changes the store of a configuration, between two lines of the cluster log: one before it,
    one with its end. Report errors as ``on_store``. An act that needs a second person is asked for first.

    Args:
        target: the part of the hub that it changes, for people.
        by: name of the person who decided, if it is not the user of this process.
    """
    from weft.cloud_hub.declared.acts import acting as acts
    from weft.cloud_hub.declared.changes import CannotDeclare
    from weft.protocols.errors import CodecError
    from weft.storage.cluster_log.log import ChangeRefused, Contended

    begun = False

    async def act(store: ObjectStore) -> T:
        nonlocal begun
        from weft.cloud_hub.clock import sound_clock

        clock = await sound_clock(store)
        author = author_of(clock(), by, reason)
        log = await open_log(store)
        act_id = await _allowed(store, log, target, author) or secrets.token_hex(8)
        async with acts.acting(log, act_id, target, author, clock):
            begun = True
            return await work(store)

    try:
        return _with_store(config_file, act)
    except (ChangeRefused, Contended, CodecError, CannotDeclare) as error:
        if begun:
            raise
        why = "" if isinstance(error, CannotDeclare) else ", as the cluster log takes no line of it"
        raise Failed(f"nothing was done{why}: {error}") from None


def declaring(
    config_file: str,
    work: Callable[[ClusterLog, Author], Awaitable[T]],
    by: str | None,
    reason: str,
    target: str = "",
) -> T:
    """Run ``work``, which changes facts of the cluster log: their entries are their lines. Report errors as
    ``on_store``. A change that needs a second person is asked for first.

    Args:
        target: of such a change, for people.
    """

    async def act(_: ObjectStore, log: ClusterLog, author: Author) -> T:
        return await work(log, author)

    return changing(config_file, act, by, reason, target)


def changing(
    config_file: str,
    work: Callable[[ObjectStore, ClusterLog, Author], Awaitable[T]],
    by: str | None,
    reason: str,
    target: str = "",
) -> T:
    """Run ``work``, which changes facts, and objects that belong to them, as ``declaring``."""

    async def act(store: ObjectStore) -> T:
        from weft.cloud_hub.clock import sound_clock

        log, author = await open_log(store), author_of((await sound_clock(store))(), by, reason)
        await _allowed(store, log, target, author)
        return await work(store, log, author)

    return _with_store(config_file, act)


def author_of(at: int, by: str | None, reason: str) -> Author:
    """Return the author of an act: this process, with the words of its command.

    Args:
        at: nanoseconds since 1970.
    """
    from weft.storage.cluster_log.log import Author

    return Author(at, by or f"{user_name()}@{platform.node()}", reason, origin(), command_words())


async def open_log(store: ObjectStore) -> ClusterLog:
    """Return the cluster log of a store."""
    from weft.storage.cluster import open_cluster
    from weft.storage.cluster_log.log import ClusterLog

    return ClusterLog(store, (await open_cluster(store, None)).cluster_id)


async def _allowed(store: ObjectStore, log: ClusterLog, target: str, author: Author) -> str | None:
    """Return the id of an act that others had to approve, and have; None for one that needs no approval."""
    from weft.cloud_hub.declared.acts import second_person

    if author.command not in second_person.ACTS:
        return None
    try:
        return await second_person.allow(
            store, log, second_person.AskedAct(author.command, target, command_options()), author
        )
    except second_person.NeedsApproval as error:
        raise Failed(str(error)) from None


def _with_store(config_file: str, work: Work[T]) -> T:
    from weft.cloud_hub.clock import ClockWrong
    from weft.storage.cluster import ClusterUnusable
    from weft.storage.object_store import StoreError

    uri = load_hub(config_file).store

    async def run() -> T:
        return await work(open_hub_store(uri))

    try:
        return asyncio.run(run())
    except ClusterUnusable as error:
        raise Failed(f"{uri}: {error}") from None
    except ClockWrong as error:
        raise Failed(f"nothing was written: {error}") from None
    except StoreError as error:
        raise Failed(f"{uri}: {store_trouble(uri, error)}") from None
