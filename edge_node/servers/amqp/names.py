"""Names of exchanges and queues, and routing keys, as a virtual host has them and as the node knows them.

A virtual host with a beginning for its topics has its own exchanges and queues: on the node their names and keys begin
with it. The node's own exchanges (``amq.``) are the same for all, and ``amq.topic`` has topics of all protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

OWN: Final = "amq."
"""Beginning of the names of exchanges and queues that the node gave."""
DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""Name that stands for a queue for answers to one channel (an extension of RabbitMQ)."""
_EXCHANGES: Final = ("x-dead-letter-exchange", "alternate-exchange")
_KEYS: Final = ("x-dead-letter-routing-key",)


class Names:
    """Translates for one virtual host.

    Args:
        prefix: beginning of the topics, without a slash behind it; empty for none.
    """

    __slots__ = ("before",)

    def __init__(self, prefix: str) -> None:
        self.before = prefix.replace("/", ".") + "." if prefix else ""
        """Beginning of names and keys on the node."""

    def name(self, name: str) -> str:
        """Return what the node calls an exchange or a queue."""
        return name if not name or not self.before or name.startswith(OWN) else self.before + name

    def key(self, exchange: str, key: str) -> str:
        """Return what the node calls a routing key, or a binding key."""
        return key if not key or not self.before or (not exchange and key.startswith(OWN)) else self.before + key

    def own(self, name: str) -> str:
        """Return what the client calls an exchange, a queue or a routing key."""
        return name.removeprefix(self.before) if self.before else name

    def arguments(self, arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return arguments in which exchanges and keys have the node's names."""
        if not arguments or not self.before:
            return arguments or {}
        found = dict(arguments)
        for name in (*_EXCHANGES, *_KEYS):
            value = found.get(name)
            if isinstance(value, str):
                found[name] = self.name(value) if name in _EXCHANGES else self.key("x", value)
        return found
