"""Irreversible acts that need a second person: requests, approvals, and their use.

A request is a fact of the cluster log. Its options are in a separate object, which is deleted with the request: they
may name a person, and an entry is permanent. The entry has a hash of the options and of a random number in that object.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from weft.cloud_hub.facts.fact import CannotDeclare, Decision
from weft.config.limits import REASON_CHARACTERS_MAX
from weft.storage import hub_keys
from weft.storage.cluster_log import (
    BY_CHARACTERS_MAX,
    COMMAND_CHARACTERS_MAX,
    ORIGIN_CHARACTERS_MAX,
    Author,
    Change,
    ClusterLog,
    ClusterState,
    Fact,
)
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, StoreError

SECOND_PERSON, REQUEST = "second-person", "request"
"""Kinds of facts. The words are persisted."""
VALID_S, VALID_S_MIN, VALID_S_MAX = 86_400, 60, 30 * 86_400
SETTING = "acts"
"""Name of the only fact of its kind."""
SETTING_COMMAND = "hub second-person"
ACTS = frozenset(
    {
        "hub clock",
        "hub declare-deletion",
        "hub erase",
        "hub finalize",
        "hub retire",
        "hub skip",
        "hub stream delete",
        SETTING_COMMAND,
    }
)
"""Commands that cannot be reverted for rows, records or releases, and the command that changes the setting."""
REQUESTS_MAX = 64
"""Maximum number of requests that wait."""
OPTIONS_BYTES_MAX = 64 << 10
APPROVALS_MAX = 8
_NS = 1_000_000_000


class SecondPersonDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The setting, while it is on."""

    approvals: Literal["names"]
    """``names``: one approval by another name and from another origin than the request's."""
    valid_s: Annotated[int, Meta(ge=VALID_S_MIN, le=VALID_S_MAX)] = VALID_S
    """Seconds until a request expires."""


class Approval(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person's approval of a request."""

    by: Annotated[str, Meta(max_length=BY_CHARACTERS_MAX)]
    origin: Annotated[str, Meta(max_length=ORIGIN_CHARACTERS_MAX)]
    at: int
    """Nanoseconds since 1970."""


class RequestDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """An act that waits for approval; the name of the fact is its id, and that of the act when it begins."""

    command: Annotated[str, Meta(max_length=COMMAND_CHARACTERS_MAX)]
    target: Annotated[str, Meta(max_length=TARGET_CHARACTERS_MAX)]
    """The part of the hub that the act changes."""
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the salt and the options."""
    entry: Annotated[int, Meta(ge=1)]
    """Number of the entry that asked. Later entries about it are approvals."""
    expires: int
    """Nanoseconds since 1970."""
    by: Annotated[str, Meta(max_length=BY_CHARACTERS_MAX)]
    origin: Annotated[str, Meta(max_length=ORIGIN_CHARACTERS_MAX)]
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] = ""
    approvals: Annotated[tuple[Approval, ...], Meta(max_length=APPROVALS_MAX)] = ()


class PersistedOptions(msgspec.Struct, frozen=True):
    """The object of a request."""

    salt: str
    options: dict[str, Any]


class AskedAct(NamedTuple):
    """An act that a command is about to perform."""

    command: str
    target: str
    options: dict[str, Any]
    """The options of the command, as JSON has them."""


class NeedsApproval(Exception):
    """An act that another person has to approve first. Nothing was changed."""


_Document = TypeVar("_Document", SecondPersonDocument, RequestDocument)


def _decode(fact: Fact, kind: type[_Document]) -> _Document | None:
    try:
        return msgspec.json.decode(fact.document, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def setting_of(state: ClusterState) -> SecondPersonDocument | None:
    """Return the setting; None while one person may perform all acts.

    Raises:
        CannotDeclare: this release cannot read it.
    """
    fact = state.facts(SECOND_PERSON).get(SETTING)
    if fact is None:
        return None
    found = _decode(fact, SecondPersonDocument)
    if found is None:
        raise CannotDeclare("a later release set who must approve such an act: use its commands")
    return found


def requests_of(state: ClusterState) -> dict[str, RequestDocument]:
    """Return the requests by id, the oldest first, without those that this release cannot read."""
    found = {name: _decode(fact, RequestDocument) for name, fact in state.facts(REQUEST).items()}
    known = [(name, request) for name, request in found.items() if request is not None]
    return dict(sorted(known, key=lambda each: each[1].entry))


def target_of_request(document: bytes) -> str:
    """Return command and target of a request, for people; empty if this release cannot read it."""
    try:
        request = msgspec.json.decode(document, type=RequestDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return f"{request.command}: {request.target}"


def change_setting(wanted: SecondPersonDocument | None) -> Decision:
    """Turn the setting on, change it, or turn it off. The caller calls ``allow`` first."""

    def decide(state: ClusterState) -> Change | None:
        fact = state.facts(SECOND_PERSON).get(SETTING)
        if wanted is None:
            return None if fact is None else Change(SECOND_PERSON, SETTING, None)
        if fact is not None and _decode(fact, SecondPersonDocument) == wanted:
            return None
        return Change(SECOND_PERSON, SETTING, msgspec.json.encode(wanted))

    return decide


def approve(name: str, approval: Approval) -> Decision:
    """Approve a request.

    Raises:
        CannotDeclare: from the decision: there is no such request, it has expired, or this person may not approve it.
    """

    def decide(state: ClusterState) -> Change | None:
        request = _waiting(state, name, approval.at)
        setting_of(state)  # of a later release, it may need more than one approval
        if _is_same(approval, request):
            raise CannotDeclare(
                f"{request.by} ({request.origin}) asked for it: another person has to approve it, under another name "
                "and as another user"
            )
        if request.approvals:
            return None
        return Change(REQUEST, name, msgspec.json.encode(msgspec.structs.replace(request, approvals=(approval,))))

    return decide


def withdraw(name: str) -> Decision:
    """Withdraw a request, approved or not.

    Raises:
        CannotDeclare: from the decision: there is none.
    """

    def decide(state: ClusterState) -> Change:
        if name not in state.facts(REQUEST):
            raise CannotDeclare(f"there is no request {name[:40]!r}: `weft hub requests` lists them")
        return Change(REQUEST, name, None)

    return decide


async def allow(store: ObjectStore, log: ClusterLog, wanted: AskedAct, author: Author) -> str | None:
    """Return the id with which an act begins, once it has the needed approval. Its request is used up.

    If the process is killed after that, the act is not performed and needs another request.

    Returns:
        None if the act needs no approval.

    Raises:
        NeedsApproval: it waits for approval. A request is made if there was none.
        CannotDeclare: too many requests wait, or this release cannot read the setting.
    """
    state = await log.load()
    if wanted.command not in ACTS or (setting := setting_of(state)) is None:
        return None
    state = await _tidy(store, log, author, state)
    found = await _find(store, state, wanted, author.at)
    if found is None:
        found = await _ask(store, log, wanted, author, setting, state)
    name, request = found
    if not request.approvals:
        raise NeedsApproval(
            f"nothing was done: request {name} needs the approval of another person (`weft hub approve CONFIG {name}`) "
            f"within {max(0, request.expires - author.at) // (60 * _NS)} minutes. Then run the same command again"
        )

    def use(state: ClusterState) -> Change:
        setting_of(state)
        _waiting(state, name, author.at)
        return Change(REQUEST, name, None)

    who = ", ".join(each.by for each in request.approvals)
    await log.append(use, author._replace(reason=f"used; approved by {who}"[:REASON_CHARACTERS_MAX]), state)
    await forget(store, name)
    return name


async def options_of(store: ObjectStore, name: str) -> PersistedOptions | None:
    """Return the options of a request; None if they are missing or damaged."""
    try:
        data = await store.get_range(hub_keys.request_key(name), 0, OPTIONS_BYTES_MAX + 1)
        return msgspec.json.decode(data, type=PersistedOptions)
    except (NotFound, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


async def forget(store: ObjectStore, name: str) -> None:
    """Delete the options of a request that is over. A later request deletes those that cannot be deleted now."""
    with contextlib.suppress(StoreError):
        await store.delete(hub_keys.request_key(name))


def _waiting(state: ClusterState, name: str, now: int) -> RequestDocument:
    request = requests_of(state).get(name)
    if request is None:
        raise CannotDeclare(f"there is no request {name[:40]!r}: `weft hub requests` lists them")
    if request.expires <= now:
        raise CannotDeclare(f"request {name} is over: run the command again, which asks again")
    return request


def _is_same(approval: Approval, request: RequestDocument) -> bool:
    """Return whether one person asked and approves, as far as a process says who runs it."""
    one, other = approval.by.strip().casefold(), request.by.strip().casefold()
    return one == other or _user(approval.origin) == _user(request.origin)


def _user(origin: str) -> str:
    """Return the user in an origin (``USER@MACHINE``): the one behind sudo, if there is one.

    The machine does not count: who sits at another one, or becomes root, is the same person.
    """
    user, _, behind = origin.partition(" (sudo by ")
    return behind.removesuffix(")") or user.rpartition("@")[0] or user


async def _find(
    store: ObjectStore, state: ClusterState, wanted: AskedAct, now: int
) -> tuple[str, RequestDocument] | None:
    for name, request in requests_of(state).items():
        if request.command != wanted.command or request.expires <= now:
            continue
        kept = await options_of(store, name)
        if kept is not None and _digest(kept.salt, wanted) == request.digest:
            return name, request
    return None


async def _ask(  # noqa: PLR0917 - what is asked, by whom, and where it is written
    store: ObjectStore,
    log: ClusterLog,
    wanted: AskedAct,
    author: Author,
    setting: SecondPersonDocument,
    state: ClusterState,
) -> tuple[str, RequestDocument]:
    name, salt = secrets.token_hex(8), secrets.token_hex(16)
    data = msgspec.json.encode(PersistedOptions(salt, wanted.options))
    if len(data) > OPTIONS_BYTES_MAX:
        raise CannotDeclare(f"the options are {len(data)} bytes; the limit of a request is {OPTIONS_BYTES_MAX}")

    request: RequestDocument | None = None

    def decide(state: ClusterState) -> Change:
        nonlocal request
        if len(state.facts(REQUEST)) >= REQUESTS_MAX:
            raise CannotDeclare(f"{REQUESTS_MAX} requests wait: refuse some (`weft hub approve --refuse`)")
        request = RequestDocument(
            wanted.command,
            wanted.target[:TARGET_CHARACTERS_MAX],
            _digest(salt, wanted),
            state.n + 1,
            author.at + setting.valid_s * _NS,
            author.by,
            author.origin,
            author.reason,
        )
        return Change(REQUEST, name, msgspec.json.encode(request))

    # The entry comes first: an object without one is that of a request that is over, and is deleted.
    await log.append(decide, author, state)
    assert request is not None, "the entry was written"
    with contextlib.suppress(AlreadyExists):  # by a retry
        await store.create(hub_keys.request_key(name), data)
    return name, request


async def _tidy(store: ObjectStore, log: ClusterLog, author: Author, state: ClusterState) -> ClusterState:
    """Withdraw requests that are over, and delete the options of those that are gone. Return the new state."""
    for name in [name for name, request in requests_of(state).items() if request.expires <= author.at]:
        with contextlib.suppress(CannotDeclare):  # another process was faster
            state = await log.append(withdraw(name), author._replace(reason="it was not used in time"), state)
    kept = await store.list(hub_keys.REQUESTS, limit=2 * REQUESTS_MAX)
    gone = [name for each in kept if (name := each.key.rpartition("/")[2]) not in state.facts(REQUEST)]
    if gone:
        state = await log.load()  # one that was made since has its entry before its object
    for name in gone:
        if name not in state.facts(REQUEST):
            await forget(store, name)
    return state


def _digest(salt: str, wanted: AskedAct) -> str:
    said = msgspec.json.encode({"command": wanted.command, "options": wanted.options, "salt": salt}, order="sorted")
    return hashlib.sha256(said).hexdigest()


TARGET_CHARACTERS_MAX = 500
