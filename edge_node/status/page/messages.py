"""``/topics`` and ``/live``: messages for the node's page."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator

from aiohttp import web

from weft.bounds.owner import Owner, user_or_address
from weft.edge_node.access.authentication import Accounts
from weft.edge_node.access.identity import Identity
from weft.edge_node.status.page.live import LiveMessages
from weft.edge_node.status.page.newest import NewestMessages
from weft.edge_node.status.page.readers import NotShown, PageReaders
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.topics import InvalidTopic, check_filter

LIVE_MAX, LIVE_OF_OWNER_MAX = 16, 4
"""Readers of live messages, and those of one user, or of one address without users."""
TOPICS_SHOWN_MAX = 500
_NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class MessagePages:
    """Handlers of both requests. Belongs to the event loop's thread."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        accounts: Accounts,
        hosts: Collection[str],
        monotonic: Callable[[], float],
        wall_clock: Callable[[], int],
        *,
        takes_anyone: bool = True,
    ) -> None:
        """Show the messages that subscribers get.

        Args:
            hosts: names under which the pages may be called, beside addresses.
            monotonic: seconds.
            wall_clock: nanoseconds since 1970.
            takes_anyone: whether some listener takes clients of this machine without a name.
        """
        self._subscriptions = subscriptions
        self._readers = PageReaders(accounts, hosts, takes_anyone=takes_anyone)
        self._monotonic, self._wall_clock = monotonic, wall_clock
        self._newest = NewestMessages(subscriptions, monotonic, wall_clock)
        self._live: set[LiveMessages] = set()
        self._owners: Counter[Owner] = Counter()

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the pages."""
        application.add_routes([web.get("/topics", self._get_topics), web.get("/live", self._get_live)])

    def close(self) -> None:
        """End what is open."""
        self._newest.close()
        for each in self._live:
            each.end()

    async def _get_topics(self, request: web.Request) -> web.StreamResponse:
        try:
            identity = await self._readers.identify(request)
            topic_filter = _filter(request)
            limit = _limit(request)
        except NotShown as refused:
            return refused.answer()
        return web.json_response(await self._newest.view(identity, topic_filter, limit), headers=_NO_STORE)

    async def _get_live(self, request: web.Request) -> web.StreamResponse:
        try:
            identity = await self._readers.identify(request)
            live = LiveMessages(self._subscriptions, identity, _filter(request), self._monotonic, self._wall_clock)
            with self._place(identity, request.remote or ""):
                self._live.add(live)
                try:
                    return await live.send(request)
                finally:
                    self._live.discard(live)
        except NotShown as refused:
            return refused.answer()

    @contextlib.contextmanager
    def _place(self, identity: Identity, address: str) -> Iterator[None]:
        owner = user_or_address(identity.username, address)
        if self._owners.total() >= LIVE_MAX or self._owners[owner] >= LIVE_OF_OWNER_MAX:
            raise NotShown(429, "too many pages follow live messages", "close another page of this node")
        self._owners[owner] += 1
        try:
            yield
        finally:
            self._owners[owner] -= 1
            self._owners += Counter()  # forgets zeros


def _filter(request: web.Request) -> str:
    topic_filter = request.query.get("filter", "") or "#"
    try:
        check_filter(topic_filter)
    except InvalidTopic as error:
        raise NotShown(400, str(error), "write it as a filter of MQTT: plant/+/temperature, plant/#") from None
    return topic_filter


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", "100")
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= TOPICS_SHOWN_MAX):
        raise NotShown(400, "limit is not a number of topics", f"ask for 1 to {TOPICS_SHOWN_MAX}")
    return int(text)
