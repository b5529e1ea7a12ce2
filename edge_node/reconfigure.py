"""Changes of a running node's configuration: checked as a whole, and applied between two turns or not at all.

Each part of the node that can change while it runs is a ``Part``. A new configuration is the running one with the
sections of these parts replaced, so settings that need a restart stay, and are reported.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from weft.config.errors import format_path
from weft.config.models import EdgeConfig
from weft.config.reading.changes import changed_settings
from weft.edge_node.check import check
from weft.edge_node.part import Part, Undo

logger = logging.getLogger(__name__)

NAMED_MAX = 20
"""Settings that are named in one line."""


class ConfigUnusable(Exception):
    """A configuration that the node does not apply; the message has the reason and the remedy."""


class ConfigVersion(NamedTuple):
    """Version of the configuration that the node works with."""

    number: int
    """1 at the start of the node; each change adds one."""
    digest: str
    """Prefix of a checksum of all settings, equal on nodes with equal settings."""
    since: float
    """Time at which it was applied, seconds since 1970."""


class ChangeResult(NamedTuple):
    """Result of a change."""

    version: ConfigVersion
    applied: list[str]
    """Settings that were applied."""
    restart: list[str]
    """Settings that differ in the file and need a restart."""


class ConfigFile(NamedTuple):
    """The file that a node's configuration came from."""

    path: str
    read: Callable[[], EdgeConfig]
    """Reads and checks it again. Blocks; raises ``ConfigUnusable`` when it is not valid."""


class Reconfigure:
    """The only way to change a running node's configuration. Event loop's thread only."""

    def __init__(
        self, running: EdgeConfig, parts: Sequence[Part], wall_clock: Callable[[], int], file: ConfigFile | None = None
    ) -> None:
        """Start with the configuration that the parts were created with.

        Args:
            parts: in the order in which they apply a change.
            wall_clock: ns since 1970.
            file: the file for ``reload``; None when there is none.
        """
        self.running = running
        self._file = file
        self._one_at_a_time = asyncio.Lock()
        self._parts = parts
        self._wall_clock = wall_clock
        self.version = ConfigVersion(1, digest_of(running), wall_clock() / 1e9)
        self._restart: list[str] = []
        self._refused = ""

    async def reload(self) -> ChangeResult:
        """Read the configuration's file again and apply its changes.

        Raises:
            ConfigUnusable: the file is not valid, or cannot be applied. The node continues as before.
        """
        if self._file is None:
            raise ConfigUnusable("the node was started without a configuration file: restart it with one")
        async with self._one_at_a_time:
            try:
                wanted = await asyncio.to_thread(self._file.read)
            except ConfigUnusable as error:
                self._refused = str(error)
                logger.error(
                    "%s is not valid, and the node could not start with it. The node keeps its settings: %s",
                    self._file.path, error,
                )  # fmt: skip
                raise
            outcome = self.apply(wanted)
            if not outcome.applied and not outcome.restart:
                logger.info("no setting in %s has changed", self._file.path)
            return outcome

    def apply(self, wanted: EdgeConfig) -> ChangeResult:
        """Apply the settings that can change while the node runs.

        It is one callback of the loop, so no publish sees only some of the parts changed.

        Raises:
            ConfigUnusable: nothing has changed. A part has refused, or the new sections contradict settings that need
                a restart.
        """
        now = msgspec.structs.replace(self.running, streams=wanted.streams, links=wanted.links, sources=wanted.sources)
        applied, restart = changed_settings(self.running, now), changed_settings(now, wanted)
        try:
            if applied:
                self._switch(now, restart)
        except ConfigUnusable as error:
            self._refused = str(error)
            logger.error("the node keeps its settings, as it cannot take over the changed ones: %s", error)
            raise
        self._restart, self._refused = sorted(restart), ""
        if applied:
            self.version = ConfigVersion(self.version.number + 1, digest_of(now), self._wall_clock() / 1e9)
            logger.info("configuration %d (%s): %s", self.version.number, self.version.digest, _named(applied))
        if restart:
            logger.warning("settings have changed and need a restart: %s", _named(restart))
        return ChangeResult(self.version, sorted(applied), self._restart)

    def facts(self) -> dict[str, Any]:
        """Return the section of the status about the configuration."""
        return {**self.version._asdict(), "restart": list(self._restart), "refused": self._refused}

    def _switch(self, now: EdgeConfig, restart: list[str]) -> None:
        findings = check(now)
        if findings:
            told = "; ".join(f"{format_path(path)}: {message}" for path, message in findings[:NAMED_MAX])
            raise ConfigUnusable(f"{told}. Restart the node, as {_named(restart)} changed with it" if restart else told)
        undone: list[tuple[Part, Undo]] = []
        for part in self._parts:
            try:
                undone.append((part, part.adopt(self.running, now)))
            except Exception as error:
                for _, undo in reversed(undone):
                    undo()
                if not isinstance(error, ValueError | OSError):
                    logger.exception("the part %s failed", part.name)
                raise ConfigUnusable(f"{part.name}: {error or type(error).__name__}") from error
        self.running = now


def digest_of(config: EdgeConfig) -> str:
    """Return the prefix of a checksum of all settings."""
    return hashlib.blake2b(msgspec.json.encode(config, order="deterministic"), digest_size=4).hexdigest()


def _named(settings: Sequence[str]) -> str:
    more = len(settings) - NAMED_MAX
    return ", ".join(sorted(settings)[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
