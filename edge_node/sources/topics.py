"""Topics of an external broker's messages -> keys of their records: rules, then a prefix."""

from __future__ import annotations

from collections.abc import Iterable

from weft.protocols.topics import check_topic, compile_rule

TOPICS_MAX = 10_000
"""Maximum number of topics whose keys are remembered; beyond it, all are forgotten and computed again."""


class Topics:
    """The rules and the prefix of one source."""

    def __init__(self, rewrite: Iterable[tuple[str, str]] = (), prefix: str = "") -> None:
        """Compile rules: (``from``, ``to``).

        Raises:
            InvalidTopic: as ``compile_rule``.
        """
        self._rules = [compile_rule(from_, to) for from_, to in rewrite]
        self._prefix = prefix
        self._known: dict[bytes, bytes] = {}

    def key(self, topic: bytes) -> bytes:
        """Return the key of a message with a topic.

        Raises:
            InvalidTopic: the topic, or its key, is not valid or too long.
        """
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= TOPICS_MAX:
                self._known.clear()
            found = self._known[topic] = self._key(topic)
        return found

    def _key(self, topic: bytes) -> bytes:
        text = topic.decode()
        text = self._prefix + next((new for rule in self._rules if (new := rule.apply(text)) is not None), text)
        check_topic(text)
        return text.encode()
