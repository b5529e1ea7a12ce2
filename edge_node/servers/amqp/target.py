"""Remembered destinations of a connection's publishes, by which the hot path recognises messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from weft.edge_node.ingest.routes import Route
from weft.edge_node.servers.amqp.names import DIRECT_REPLY_TO
from weft.protocols.amqp.errors import AmqpError
from weft.protocols.amqp.further_keys import SEEN, UNSEEN
from weft.protocols.amqp.properties import read_properties
from weft.protocols.amqp.publish_run import Form
from weft.protocols.columns import HeaderPairs
from weft.protocols.fields import packed_headers
from weft.protocols.message_headers import REPLY_TO

KNOWN_BYTES_MAX = 256 << 10
"""Approximate memory of one connection's remembered targets and forms: some 100 topics with usual properties. Beyond
it, all are forgotten and looked up again."""
FORM_BYTES_MAX = 16 << 10
"""Longest form that is remembered."""
TARGET_BYTES, FORM_BYTES, PAIR_BYTES, COPIES = 512, 512, 120, 3
"""Memory of a target, a form and a header, and number of copies of a frame's bytes in them."""
SEEN_MAX = 256
"""Maximum number of properties remembered as seen before; beyond it, all are forgotten."""


class Target(NamedTuple):
    """Exchange and routing key on one channel, and the route of its messages."""

    publisher: Any
    """The channel."""
    channel: bytes
    """Its number, encoded as in frames."""
    topic: bytes
    headers: HeaderPairs
    """Headers with exchange and routing key."""
    route: Route


class Targets:
    """Method frame -> target, and forms of its messages, of one connection. Cleared when routes or permissions may have
    changed. Compared by identity.

    Args:
        wall_clock: nanoseconds since 1970.
        spend: returns False once the client's turn is over.
    """

    __slots__ = ("_bytes", "_forms", "_seen", "_spend", "_targets", "_wall_clock", "form")

    def __init__(self, wall_clock: Callable[[], int], spend: Callable[[int], bool]) -> None:
        self._wall_clock = wall_clock
        self._spend = spend
        self._targets: dict[bytes, Target] = {}
        self._forms: dict[tuple[bytes, bytes], Form] = {}
        self._seen: set[int] = set()
        self._bytes = 0
        self.form: Form | None = None
        """Form of the last message; None once it must not be used any more."""

    def __bool__(self) -> bool:
        return bool(self._targets)

    def find(self, method: bytes, properties: bytes) -> Form | None:
        """Return the form of messages with a method frame and properties."""
        key = method, properties
        form = self._forms.get(key)
        if form is None and (target := self._targets.get(method)) is not None:
            form = self._make(target, key)
        return form

    def remember(self, method: bytes, target: Target) -> None:
        """Let the hot path handle further messages with this method frame."""
        self._charge(TARGET_BYTES + COPIES * len(method))
        self._targets[method] = target

    def forget(self, publisher: object) -> None:
        """Forget the targets of one channel."""
        kept = {method: target for method, target in self._targets.items() if target.publisher is not publisher}
        if len(kept) < len(self._targets):
            self.clear()
            for method, target in kept.items():
                self.remember(method, target)

    def clear(self) -> None:
        """Forget all."""
        self._targets.clear()
        self._forms.clear()
        self._seen.clear()
        self._bytes = 0
        self.form = None

    def _make(self, target: Target, key: tuple[bytes, bytes]) -> Form | None:
        """Return a new form, None for properties that the hot path does not handle: a user must be that of the
        connection, and further keys have other routes. It is remembered when its properties come for the second time:
        properties with an identifier of their own never do."""
        if not self._spend(0):
            return None  # decoding a read full of properties would take several turns
        method, properties = key
        try:
            content = read_properties(properties)
        except AmqpError:
            return None  # the path that decodes fields reports it
        if content.user_id is not None or _has_a_way_of_its_own(content.headers):
            return None
        headers = (*content.at(self._wall_clock()), *target.headers)
        size = FORM_BYTES + PAIR_BYTES * len(headers) + COPIES * (len(method) + len(properties))
        lasts = content.expires_ms is None
        is_small = lasts and size <= FORM_BYTES_MAX
        is_known = is_small and self._came_before(hash(key))
        if is_known:
            headers = packed_headers(headers)
        form = Form(
            method, target.channel, properties, target.topic, headers, target.publisher, target.route,
            # The next read makes the form that is kept: a publisher of equal messages would never look for it.
            lasts=is_known if is_small else lasts,
        )  # fmt: skip
        if is_known and self._charge(size):
            self._forms[key] = form
        return form

    def _came_before(self, key: int) -> bool:
        if key in self._seen:
            return True
        if len(self._seen) >= SEEN_MAX:
            self._seen.clear()
        self._seen.add(key)
        return False

    def _charge(self, size: int) -> bool:
        """Return whether there is room; without room, forget all entries, which the next messages look up again."""
        self._bytes += size
        if self._bytes <= KNOWN_BYTES_MAX:
            return True
        self.clear()
        return False


def _has_a_way_of_its_own(headers: HeaderPairs) -> bool:
    """Return whether a message has further routing keys, or direct reply-to for its answers."""
    return any(name in (SEEN, UNSEEN) or (name == REPLY_TO and value == DIRECT_REPLY_TO) for name, value in headers)
