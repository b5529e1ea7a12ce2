"""Acts that are more than the change of a fact: recorded by two entries of the cluster log, one before the act and one
after.

The change of a fact is an entry already. Other acts write chunks, tables or ``cluster.json``. Each begins with an entry
that declares the fact (``act``, id), and ends with one that withdraws it, whose reason is the act's outcome. The facts
of this kind are therefore the acts that began and did not end; how far they came is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from weft.cloud_hub.facts.approvals import REQUEST, TARGET_CHARACTERS_MAX, target_of_request
from weft.config.limits import REASON_CHARACTERS_MAX
from weft.hub_api.acts import ActLine
from weft.hub_api.answers import moment
from weft.protocols.errors import CodecError
from weft.storage.cluster_log import Author, Change, ChangeRefused, ClusterLog, ClusterState, Contended, Declaration
from weft.storage.object_store import ObjectStore, StoreError

_logger = logging.getLogger(__name__)
ACT = "act"
HUB = "the hub"
"""Author of acts of the hub itself."""
OPEN_MAX = 256
"""Maximum number of acts without an end. Beyond it, the oldest are ended with an unknown outcome."""
DONE, FAILED, UNKNOWN = "done", "failed", "its end is not known: another act closed it"


class ActDocument(msgspec.Struct, frozen=True):
    """An act that began; the name of the fact is its id."""

    target: Annotated[str, Meta(max_length=TARGET_CHARACTERS_MAX)]
    """The part of the hub that it changes, such as ``shard 3``."""


def target_of(document: bytes) -> str:
    """Return the target of an act; empty if this release cannot read it."""
    try:
        return msgspec.json.decode(document, type=ActDocument).target
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


@contextlib.asynccontextmanager
async def acting(
    log: ClusterLog, act_id: str, target: str, author: Author, now: Callable[[], int]
) -> AsyncIterator[None]:
    """Write the entry of an act before it, durably, and the entry of its end after it.

    If the act raises, the end has the error. A process that is killed in between leaves only the first entry.

    Args:
        act_id: a new id.
        now: nanoseconds since 1970. If it raises, the end has the time of the beginning.

    Raises:
        StoreError, ChangeRefused, Contended, CodecError: the first entry could not be written. The act has not begun.
    """
    state = await log.load()
    while len(facts := state.facts(ACT)) >= OPEN_MAX:
        oldest = min(facts.values(), key=lambda fact: fact.version).name
        state = await log.append(_ends(oldest), author._replace(reason=UNKNOWN), state)
    document = msgspec.json.encode(ActDocument(target[:TARGET_CHARACTERS_MAX]))
    state = await log.append(lambda _: Change(ACT, act_id, document), author, state)

    async def end(how: str) -> None:
        at = author.at
        with contextlib.suppress(Exception):
            at = now()
        try:
            await log.append(_ends(act_id), author._replace(at=at, reason=how[:REASON_CHARACTERS_MAX]), state)
        except (StoreError, ChangeRefused, Contended, CodecError) as error:
            _logger.warning("the end of an act (%s) could not be noted in the cluster log: %s", how, error)

    try:
        yield
    except Exception as error:
        await end(f"{FAILED}: {error}")
        raise
    await end(DONE)


def _ends(act_id: str) -> Callable[[ClusterState], Change | None]:
    return lambda state: Change(ACT, act_id, None) if act_id in state.facts(ACT) else None


class OwnActs:
    """Acts of the hub itself, recorded as those of people.

    Args:
        now: nanoseconds since 1970.
    """

    def __init__(self, store: ObjectStore, cluster_id: bytes, now: Callable[[], int]) -> None:
        self._log = ClusterLog(store, cluster_id)
        self._now = now

    @contextlib.asynccontextmanager
    async def __call__(self, act: str, target: str, reason: str) -> AsyncIterator[None]:
        """Write the lines of an act.

        Args:
            act: its words, in the place of a command's.
            reason: the setting and the measurement that led to it.

        Raises:
            StoreError: the first line could not be written. The act has not begun.
        """
        author = Author(self._now(), HUB, reason[:REASON_CHARACTERS_MAX], f"{HUB}@{platform.node()}", act)
        async with contextlib.AsyncExitStack() as lines:
            try:
                await lines.enter_async_context(acting(self._log, secrets.token_hex(8), target, author, self._now))
            except (ChangeRefused, Contended, CodecError) as error:
                raise StoreError(f"the cluster log cannot record it: {error}") from error
            yield


# Lines of the record of acts, as people and programs get them: one for each entry of the cluster log.

READS_AT_ONCE = 16
UNUSABLE = "the entry is damaged or missing"
NumberedEntry = tuple[int, Declaration | None]
"""Number of an entry, and the entry; None if it is damaged or missing."""


async def entries(log: ClusterLog, first: int, end: int) -> list[NumberedEntry]:
    """Return entries [first, end) in their order. Each costs one GET.

    Raises:
        StoreError: the store did not answer.
        UnsupportedVersion: a later release wrote one of them.
    """
    room = asyncio.Semaphore(READS_AT_ONCE)

    async def one(n: int) -> NumberedEntry:
        async with room:
            return n, await log.entry(n)

    return await asyncio.gather(*map(one, range(first, end)))


async def lines(log: ClusterLog, first: int, end: int) -> list[ActLine]:
    """Return the lines of entries [first, end). Raises as ``entries``."""
    found: list[ActLine] = []
    for at in range(first, end, READS_AT_ONCE):  # entries may be long, and their lines are not
        found += [line(*each) for each in await entries(log, at, min(end, at + READS_AT_ONCE))]
    return found


def line(n: int, entry: Declaration | None) -> ActLine:
    """Return the line of an entry. It leaves out the fact's document, which may be long and has hashes of secrets.

    Args:
        entry: None if it is damaged or missing.
    """
    if entry is None:
        return ActLine(
            entry=n, at=None, by="", origin="", command="", act="unusable", kind="", name="", target="", reason=UNUSABLE
        )
    words = ("ended", "began") if entry.kind == ACT else ("withdrew", "declared")
    return ActLine(
        entry=n,
        at=moment(entry.at),
        by=entry.by,
        origin=entry.origin,
        command=entry.command,
        act=words[entry.document is not None],
        kind=entry.kind,
        name=entry.name,
        target=_target(entry),
        reason=entry.reason,
    )


def _target(entry: Declaration) -> str:
    if entry.more:
        return ", ".join(each.name for each in entry.facts)
    if entry.document is None:
        return ""
    if entry.kind == ACT:
        return target_of(entry.document)
    return target_of_request(entry.document) if entry.kind == REQUEST else ""
