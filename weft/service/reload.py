"""Reload of the configuration at SIGHUP: name the changed settings that need a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from weft.config.reading.changes import changed_settings
from weft.output import Refused

logger = logging.getLogger(__name__)

SETTINGS_NAMED_MAX = 20


class RunningSettings:
    """The settings that a process runs with, and the file that they came from.

    Args:
        load: reads the file; raises ``Refused`` when it is not valid.
    """

    def __init__(self, path: str, running: msgspec.Struct, load: Callable[[str], msgspec.Struct]) -> None:
        self._path = path
        self._running = running
        self._load = load

    async def say_what_needs_a_restart(self) -> None:
        """Read the file again and log the settings that differ. The running node adopts none of them."""
        try:
            now = await asyncio.to_thread(self._load, self._path)
        except Refused as error:
            logger.error(
                "SIGHUP: %s is not valid, and the node could not start with it. The node keeps its settings: %s",
                self._path, error,
            )  # fmt: skip
            return
        changed = sorted(changed_settings(self._running, now))
        if not changed:
            logger.info("SIGHUP: no setting in %s has changed", self._path)
            return
        more = len(changed) - SETTINGS_NAMED_MAX
        named = ", ".join(changed[:SETTINGS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        logger.warning("SIGHUP: settings in %s have changed and need a restart: %s", self._path, named)
