"""Everything in a hub that has a total leaves room for other tenants, however many tokens one tenant has."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

from tests.cloud_hub.live import running_hub
from weft.bounds import NestedShares, Owner, OwnerKind, Shares
from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.down.edge_queue import DownContext
from weft.cloud_hub.http.answers import ReaderPlaces
from weft.cloud_hub.links.open_links import OpenLinks
from weft.hub_api.answers import ApiError
from weft.hub_api.rights import Scope
from weft.storage.object_store.directory import MemoryStore

EVIL, GOOD = "evil", "good"
TOKENS = 4_096
BY_TENANT = {"StreamFigures._named", "DownContext.bytes"}
"""Shares whose owners are tenants. One whose owners are tokens, edges or addresses is to be a ``NestedShares``."""
KNOWN = BY_TENANT | {
    "Answers._shares",
    "Answers._waiting",
    "Messages._under_way",
    "Messages._bytes",
    "StreamTails._places",
    "ChangeStreams._places",
    "Hub._links",
}
Bound = Shares[Any] | NestedShares[Any] | ReaderPlaces | OpenLinks


def bounds() -> Iterator[tuple[str, Bound]]:
    """Yield what has a total in the hubs of this process, with class and attribute that hold it."""
    for holder in gc.get_objects():
        kind = type(holder)
        if str(kind.__module__).startswith("weft.cloud_hub."):
            for name in {*getattr(holder, "__dict__", ()), *(name for each in kind.__mro__ for name in _slots(each))}:
                value = getattr(holder, name, None)
                if isinstance(value, Shares | NestedShares | ReaderPlaces | OpenLinks):
                    yield f"{kind.__name__}.{name}", value


def _slots(kind: type) -> tuple[str, ...]:
    slots = getattr(kind, "__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def leaves_room(bound: Bound, held: contextlib.ExitStack) -> bool:
    """Take all that one tenant can get with any number of tokens, and return whether another gets something."""
    if isinstance(bound, NestedShares):
        unit = max(1, bound._of_owners.share // 4)
        for token in range(TOKENS):
            while bound.take(EVIL, f"evil-{token}", unit):
                pass
        bound.hold(EVIL, "evil-0", 1 << 50)  # as an answer that is longer than it was expected to be
        return bound.take(GOOD, "good", unit)
    if isinstance(bound, Shares):
        unit = max(1, bound.share // 4)
        while bound.take(EVIL, unit):
            pass
        return bound.take(GOOD, unit)
    if isinstance(bound, ReaderPlaces):
        return (
            _takes_place(bound, GOOD, 0, held)
            if not all(_takes_place(bound, EVIL, token, held) for token in range(TOKENS))
            else False
        )
    for token in range(TOKENS):
        if not _links(bound, EVIL, token, held):
            break
    return _links(bound, GOOD, 0, held)


def _takes_place(places: ReaderPlaces, tenant: str, token: int, held: contextlib.ExitStack) -> bool:
    try:
        held.enter_context(places.taken(Owner(OwnerKind.TOKEN, f"{tenant}-{token}"), tenant))
    except ApiError:
        return False
    return True


class _Link:
    hello, is_over = None, False
    end: Callable[..., None]

    def __init__(self) -> None:
        self.end = lambda *_: setattr(self, "is_over", True)


def _links(links: OpenLinks, tenant: str, token: int, held: contextlib.ExitStack) -> bool:
    identity = TokenIdentity(f"{tenant}-{token}", "00", Scope.EDGE, tenant, f"edge-{token}")
    try:
        links.check_room(identity)
    except ApiError:
        return False
    link: Any = _Link()
    held.enter_context(links.opened(link, identity))
    return True


async def test_no_tenant_can_take_a_total() -> None:
    of_a_shard = DownContext()  # which a shard with messages to edges has
    async with running_hub(MemoryStore()):
        found = dict(bounds()) | {"DownContext.bytes": of_a_shard.bytes}
        assert {name for name in found if isinstance(found[name], Shares)} <= BY_TENANT, "make it a NestedShares"
        assert set(found) == KNOWN, "add it to the table; or say why the walk finds it no more"
        with contextlib.ExitStack() as held:
            taken = [name for name, bound in found.items() if not leaves_room(bound, held)]
        assert not taken, "one tenant can take all of it"
