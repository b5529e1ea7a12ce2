"""Topic -> streams, by the ``from`` patterns of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.protocols.topics import TopicPattern, compile_pattern


class Router:
    """Lookup of the streams of a topic. A topic goes into every stream that has a matching pattern.

    Asked once per distinct topic (``Ingest`` remembers the answers), so a plain walk over the patterns is enough.
    """

    def __init__(self, patterns: Mapping[str, Sequence[str]], number: Callable[[str], int]) -> None:
        """Compile the patterns.

        Args:
            patterns: stream name -> its patterns, in the order of the configuration.
            number: stream name -> its number in the log, such as ``SegmentLog.stream``.

        Raises:
            InvalidTopic: a pattern is not valid.
        """
        self._streams: list[tuple[int, list[TopicPattern]]] = [
            (number(name), [compile_pattern(pattern) for pattern in of_stream]) for name, of_stream in patterns.items()
        ]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of all streams, in the order of the configuration."""
        return tuple(number for number, _ in self._streams)

    def streams(self, topic: str) -> tuple[int, ...]:
        """Return the numbers of the streams that match the topic, in the order of the configuration; may be empty."""
        return tuple(
            number
            for number, patterns in self._streams
            if any(pattern.match(topic) is not None for pattern in patterns)
        )
