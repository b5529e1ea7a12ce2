"""Topic aliases towards one client (MQTT 5.0 section 3.3.2.3.4). Those of the client are the state machine's."""

from __future__ import annotations


class SentAliases:
    """The numbers that the server has given to topics: the first topics that are sent get one, and keep it."""

    __slots__ = ("_aliases", "_maximum")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._aliases: dict[bytes, int] = {}

    def find(self, topic: bytes) -> tuple[bytes, int | None]:
        """Return the topic to write (empty when the client knows its number) and the alias.

        The alias is never over the client's maximum [MQTT-3.1.2-26].
        """
        known = self._aliases.get(topic)
        if known is not None:
            return b"", known
        if len(self._aliases) >= self._maximum:
            return topic, None
        return topic, len(self._aliases) + 1

    def sent(self, topic: bytes, alias: int) -> None:
        """Note that a packet with topic and alias goes out: from now on the number is enough."""
        self._aliases[topic] = alias
