"""Base class of the settings of functions that do more than pass rows to the next one."""

from __future__ import annotations

from typing import Literal

from weft.config.values import Section


class FunctionSettings(Section, frozen=True, kw_only=True):
    """Settings of a function, with the facts that the configuration's checks need. Other functions need only a
    Section."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the streams that the function writes rows to, beside its own."""
        return ()

    @property
    def new_key(self) -> tuple[str, ...] | None:
        """Return the names whose values make up the keys of the rows that come out, joined by ``/``; None where keys
        stay. Empty where all rows have the same key."""
        return None

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the MQTT topics that the function publishes to, with names in braces where values are filled in."""
        return ()

    @property
    def new_patterns(self) -> tuple[str, ...] | None:
        """Return the patterns of the keys of the rows that come out, where ``new_key`` cannot express them."""
        return None

    @property
    def reads(self) -> Literal["sparkplug"] | None:
        """Return the payload format that the function parses itself, as the first one of its stream; None for one that
        works with fields. Rows that it makes are JSON, unless the stream has a format of its own."""
        return None
