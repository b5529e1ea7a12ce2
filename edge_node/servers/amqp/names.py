"""Translation of names of exchanges and queues, and of routing keys, between a virtual host and the node.

A virtual host with a topic prefix has its own exchanges and queues: on the node their names and keys begin with it. The
node's own exchanges (``amq.``) are the same for all, and ``amq.topic`` has topics of all protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

OWN: Final = "amq."
"""Prefix of the names of exchanges and queues that the node gave."""
DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""Name of a pseudo-queue for answers to one channel (an extension of RabbitMQ)."""
_EXCHANGES: Final = ("x-dead-letter-exchange", "alternate-exchange")
_KEYS: Final = ("x-dead-letter-routing-key",)


class Names:
    """Translation for one virtual host.

    Args:
        prefix: prefix of the topics, without a slash at its end; empty for none.
    """

    __slots__ = ("before",)

    def __init__(self, prefix: str) -> None:
        self.before = prefix.replace("/", ".") + "." if prefix else ""
        """Prefix of names and keys on the node."""

    def name(self, name: str) -> str:
        """Return the node's name of an exchange or a queue."""
        return name if not name or not self.before or name.startswith(OWN) else self.before + name

    def key(self, exchange: str, key: str) -> str:
        """Return the node's form of a routing key or binding key."""
        return key if not key or not self.before or (not exchange and key.startswith(OWN)) else self.before + key

    def own(self, name: str) -> str:
        """Return the client's name of an exchange, a queue or a routing key."""
        return name.removeprefix(self.before) if self.before else name

    def arguments(self, arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return arguments with the node's names of exchanges and keys."""
        if not arguments or not self.before:
            return arguments or {}
        found = dict(arguments)
        for name in (*_EXCHANGES, *_KEYS):
            value = found.get(name)
            if isinstance(value, str):
                found[name] = self.name(value) if name in _EXCHANGES else self.key("x", value)
        return found
