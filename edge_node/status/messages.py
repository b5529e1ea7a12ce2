"""``/topics`` and ``/live``: messages for the node's page."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec
from aiohttp import web

from weft.bounds.bound import Owner, user_or_address
from weft.bounds.browsers import is_misdirected
from weft.edge_node.access.authentication import Accounts
from weft.edge_node.access.identity import AccessDenied, Credentials, Denial, Identity
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriptions import ClientSubscription, DeliveryOptions, Subscriptions
from weft.network.admission import is_loopback
from weft.network.problem import PROBLEM_JSON, problem
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.topics import InvalidTopic, check_filter, matches

# Readers of messages on the node's page: its users, by the access rules that count for MQTT.
#
# No cookies: a request of a foreign page would carry them. Not from the log: it has nothing of topics that no stream
# keeps.

# A browser would answer the challenge Basic by a window of its own, over the page's form.
_CHALLENGE = {"WWW-Authenticate": 'FormBased realm="weft"', "Cache-Control": "no-store"}
_NAMES = "call the page by its address, or set http.hosts"
_NO_USERS = "set auth.users_file and add a user with `weft user add`, or open the page on the node itself"
_STATUS = {Denial.WRONG: 401, Denial.NOT_ALLOWED: 403, Denial.BUSY: 503}


class NotShown(Exception):
    """A request that is not answered with messages."""

    def __init__(self, status: int, error: str, advice: str) -> None:
        super().__init__(error)
        self.status, self.error, self.advice = status, error, advice

    def answer(self) -> web.Response:
        """Return the answer to it."""
        body = problem(self.status, self.error, self.advice)
        headers = _CHALLENGE if self.status == 401 else None
        return web.Response(body=body, status=self.status, headers=headers, content_type=PROBLEM_JSON)


class PageReaders:
    """Check of requests for messages.

    Args:
        hosts: names under which the pages may be called, beside addresses.
        takes_anyone: whether some listener takes clients of this machine without a name, while there are no users.
    """

    def __init__(self, accounts: Accounts, hosts: Collection[str], *, takes_anyone: bool) -> None:
        self._accounts = accounts
        self._takes_anyone = takes_anyone
        self._hosts = hosts

    async def identify(self, request: web.Request) -> Identity:
        """Return who asks: a user by name and password (RFC 7617), or a client of this machine where no users are set.

        Raises:
            NotShown: it may not see messages, or a page of strangers has sent it.
        """
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise NotShown(403, "another page sent this request", "open the page of the node")
        address = request.remote or ""
        if not self._accounts.has_users:
            if not (self._takes_anyone and is_here(request)):
                raise NotShown(403, "messages are shown to users only, and this node has none", _NO_USERS)
            # Under a stranger's name, the page of the stranger would be of one origin with this one (DNS rebinding).
            if is_misdirected(request.headers.getall("Host", ()), self._hosts):
                raise NotShown(403, "messages are not shown under this name", _NAMES)
        elif "Authorization" not in request.headers:
            raise NotShown(401, "messages are shown to users of this node", "sign in with a user's name and password")
        try:
            return await self._accounts.identify(
                _credentials(request), None, may_be_anonymous=not self._accounts.has_users, address=address
            )
        except AccessDenied as denied:
            raise NotShown(_STATUS[denied.denial], str(denied), "check name and password, or try again later") from None


def is_here(request: web.Request) -> bool:
    """Return whether a request comes from this machine."""
    return request.remote is not None and is_loopback(request.remote)


def _credentials(request: web.Request) -> Credentials:
    kind, _, rest = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "basic":
        return Credentials()
    try:
        name, _, password = base64.b64decode(rest.strip(), validate=True).partition(b":")
        return Credentials("", name.decode(), password)
    except (binascii.Error, ValueError):
        raise NotShown(401, "the credentials cannot be read", "send them in the form of RFC 7617") from None


def shown(payload: bytes, bytes_max: int) -> dict[str, Any]:
    """Return a payload for people: as text if it is UTF-8 without control characters, else in hexadecimal digits."""
    part = payload[:bytes_max]
    text: str | None
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        # A character may be cut in the middle.
        is_cut = len(payload) > bytes_max and error.start >= len(part) - 3
        text = part[: error.start].decode() if is_cut else None
    if text is not None and not any(each < " " and each not in "\t\r\n" for each in text):
        return {"text": text, "bytes": len(payload)}
    return {"hex": part[: bytes_max // 2].hex(), "bytes": len(payload)}


# Live messages of the topics that match a filter, as server-sent events, at the pace of people.

PER_S_MAX = 50
"""Messages of a second that a reader is shown; it hears the number of the others."""
LIVE_PAYLOAD_BYTES_MAX = 2048
EVENT_INTERVAL_S = 0.25
LOOK_S = 1.0
"""Longest time after which a reader that has left gives its place back."""
BEAT_S = 15.0
"""Longest time without a word to a reader, so that proxies keep the connection."""
WRITE_S = 10.0
"""Longest time that a reader may take to read an event: slower ones are disconnected."""


class LiveMessages:
    """A subscriber at QoS 0 for one reader. Belongs to the event loop's thread.

    Args:
        monotonic: seconds.
        wall_clock: nanoseconds since 1970.
    """

    client_id = ""
    persistent = False

    def __init__(
        self,
        subscriptions: Subscriptions,
        identity: Identity,
        topic_filter: str,
        monotonic: Callable[[], float],
        wall_clock: Callable[[], int],
    ) -> None:
        self._subscriptions = subscriptions
        self._identity = identity
        self._subscription = ClientSubscription(self, topic_filter, Subscription(topic_filter, 0), None)
        self._monotonic, self._wall_clock = monotonic, wall_clock
        self._gathered: list[dict[str, Any]] = []
        self._skipped = 0
        self._taken, self._until = 0, 0.0
        self._news = asyncio.Event()
        self._is_over = False

    def end(self) -> None:
        """End ``send``."""
        self._is_over = True
        self._news.set()

    async def send(self, request: web.Request) -> web.StreamResponse:
        """Send messages until the reader leaves, is no user any more, or ``end``."""
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = web.StreamResponse(headers=headers)
        self._subscriptions.add(self._subscription)
        try:
            async with asyncio.timeout(WRITE_S):
                await stream.prepare(request)
                await stream.write(b":\n\n")
            said = self._monotonic()
            while not self._is_over and self._identity.admitted and _is_there(request):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._news.wait()
                self._news.clear()
                has_news = bool(self._gathered or self._skipped)
                if self._is_over or not self._identity.admitted or not (has_news or self._monotonic() - said >= BEAT_S):
                    continue
                said = self._monotonic()
                async with asyncio.timeout(WRITE_S):
                    await stream.write(self._event() if has_news else b":\n\n")
                await asyncio.sleep(EVENT_INTERVAL_S)
            await stream.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._subscriptions.remove(self._subscription)
        return stream

    def _event(self) -> bytes:
        gathered, self._gathered = self._gathered, []
        skipped, self._skipped = self._skipped, 0
        return b"data: " + msgspec.json.encode({"messages": gathered, "skipped": skipped}) + b"\n\n"

    # --- ``Subscriber``

    def may_read(self, topic: bytes) -> bool:
        """Return whether the reader may read messages of a topic."""
        return self._identity.unrestricted or self._identity.may_read(topic)

    def offer(self, message: Message, options: DeliveryOptions, qos: int) -> None:  # noqa: ARG002
        """Show a message, or count it."""
        self.send_at_most_once(message, options)

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:  # noqa: ARG002
        """Show a message, or count it."""
        now = self._monotonic()
        if now >= self._until:
            self._taken, self._until = 0, now + 1.0
        self._taken += 1
        if self._taken > PER_S_MAX:
            self._skipped += 1
        else:
            self._gathered.append(
                {
                    "topic": message.topic.decode(),
                    "time": self._wall_clock() / 1e9,
                    "qos": message.qos,
                    "retain": message.retain,
                    "payload": shown(message.payload, LIVE_PAYLOAD_BYTES_MAX),
                }
            )
        self._news.set()


def _is_there(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()


# The newest message of each topic, with the last values of its numbers, while a page is open.

EVERYTHING = "#"
WATCHED_S = 30.0
"""Time without a request after which the node no longer looks at messages."""
TOPICS_MAX = 500
"""Number of topics that are remembered: those with the newest messages."""
TOPIC_BYTES_MAX, PAYLOAD_BYTES_MAX = 512, 512
"""Longer topics are left out; of longer payloads the beginning is shown."""
FIELDS_MAX, POINTS_MAX = 3, 60
"""Numbers of a topic, and values of each."""
POINT_INTERVAL_S = 1.0
"""Shortest time between two values of a topic: messages in between count, and their numbers are not looked at."""
PARSED_BYTES_MAX, PARSED_PER_S_MAX = 2048, 200
"""Payloads that are looked into: not longer ones, and not more in a second."""
CHECKED_AT_ONCE = 50
"""Topics whose access rules are checked in one step."""
_decode = msgspec.json.decode


class NewestOfTopic:
    """The newest message of a topic, and values of its numbers."""

    __slots__ = ("messages", "next_point", "payload", "points", "size", "time")

    def __init__(self) -> None:
        self.messages = 0
        self.time = 0.0
        self.payload = b""
        self.size = 0
        self.points: dict[str, deque[float]] = {}
        self.next_point = 0.0


class NewestMessages:
    """A subscriber to everything at QoS 0, while it is asked. Belongs to the event loop's thread.

    Args:
        monotonic: seconds.
        wall_clock: nanoseconds since 1970.
    """

    client_id = ""
    persistent = False

    def __init__(
        self, subscriptions: Subscriptions, monotonic: Callable[[], float], wall_clock: Callable[[], int]
    ) -> None:
        self._subscriptions = subscriptions
        self._subscription = ClientSubscription(self, EVERYTHING, Subscription(EVERYTHING, 0), None)
        self._monotonic, self._wall_clock = monotonic, wall_clock
        self._topics: OrderedDict[bytes, NewestOfTopic] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._asked = 0.0
        self._since = 0.0
        """Time from which on messages were seen, in seconds since 1970."""
        self._parsed, self._parsed_until = 0, 0.0

    def close(self) -> None:
        """Forget all, and look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._subscriptions.remove(self._subscription)
            self._topics.clear()

    async def view(self, identity: Identity, topic_filter: str, limit: int) -> dict[str, Any]:
        """Return the newest messages of the topics that a reader may read and that match a filter, and watch on."""
        self._asked = self._monotonic()
        if self._timer is None:
            self._since = self._wall_clock() / 1e9
            self._subscriptions.add(self._subscription)
            self._timer = asyncio.get_running_loop().call_later(WATCHED_S, self._look)
        found: list[dict[str, Any]] = []
        for number, (topic, newest) in enumerate(list(reversed(self._topics.items()))):
            if number % CHECKED_AT_ONCE == CHECKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            name = topic.decode()
            if matches(topic_filter, name) and (identity.unrestricted or identity.may_read(topic)):
                if len(found) == limit:
                    return {"since": self._since, "topics": found, "is_whole": False}
                found.append(_view(name, newest))
        return {"since": self._since, "topics": found, "is_whole": len(self._topics) < TOPICS_MAX}

    def _look(self) -> None:
        left = self._asked + WATCHED_S - self._monotonic()
        if left <= 0:
            self.close()
        else:
            self._timer = asyncio.get_running_loop().call_later(left, self._look)

    # --- ``Subscriber``

    def may_read(self, topic: bytes) -> bool:  # noqa: ARG002
        """Return True: readers' rights are looked at when they ask."""
        return True

    def offer(self, message: Message, options: DeliveryOptions, qos: int) -> None:  # noqa: ARG002
        """Remember a message."""
        self.send_at_most_once(message, options)

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:  # noqa: ARG002
        """Remember a message."""
        topics, topic = self._topics, message.topic
        newest = topics.get(topic)
        if newest is None:
            if len(topic) > TOPIC_BYTES_MAX:
                return
            newest = topics[topic] = NewestOfTopic()
            if len(topics) > TOPICS_MAX:
                topics.popitem(last=False)
        else:
            topics.move_to_end(topic)
        newest.messages += 1
        newest.time = self._wall_clock() / 1e9
        newest.payload, newest.size = message.payload[:PAYLOAD_BYTES_MAX], len(message.payload)
        now = self._monotonic()
        if now >= newest.next_point and newest.size <= PARSED_BYTES_MAX and self._may_parse(now):
            newest.next_point = now + POINT_INTERVAL_S
            for name, value in numbers(message.payload):
                if name in newest.points or len(newest.points) < FIELDS_MAX:
                    newest.points.setdefault(name, deque(maxlen=POINTS_MAX)).append(value)

    def _may_parse(self, now: float) -> bool:
        if now >= self._parsed_until:
            self._parsed, self._parsed_until = 0, now + 1.0
        self._parsed += 1
        return self._parsed <= PARSED_PER_S_MAX


def numbers(payload: bytes) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a JSON payload: of itself, under an empty name, or of the fields of an object."""
    try:
        value = _decode(payload)
    except msgspec.DecodeError:
        return
    fields = value.items() if isinstance(value, dict) else [("", value)]
    for name, each in fields:
        if isinstance(each, int | float) and not isinstance(each, bool) and abs(each) < 1e300:
            yield str(name)[:64], float(each)


def _view(topic: str, newest: NewestOfTopic) -> dict[str, Any]:
    return {
        "topic": topic,
        "time": newest.time,
        "messages": newest.messages,
        "payload": shown(newest.payload, PAYLOAD_BYTES_MAX) | {"bytes": newest.size},
        "numbers": {name: list(values) for name, values in newest.points.items()},
    }


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
