"""Changes of a running node's configuration: checked as a whole, and applied between two turns or not at all.

Each part of the node that can change while it runs is a ``Part``. A new configuration is the running one with the
sections of these parts replaced, so settings that need a restart stay, and are reported.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from weft.config.errors import format_path
from weft.config.load import changed_settings
from weft.config.models import EdgeConfig
from weft.edge_node.check import data_directory
from weft.edge_node.check.rules import check
from weft.edge_node.control.client import LinksReply, LinksRequest, ReloadReply, ReplayReply, ReplayRequest
from weft.edge_node.links.desired import ConfigTrial, Prepared, StoredConfig, Unfit
from weft.edge_node.part import Part, Undo
from weft.protocols.link import ConfigDesired, ConfigOutcome
from weft.replication.events import LinkStatus

if TYPE_CHECKING:
    from weft.edge_node.derived.stream import ReplayProgress
    from weft.edge_node.links.links import Links, LinksPart

    Replay = Callable[[str, str], Awaitable[ReplayProgress]]


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


class Overlay(Protocol):
    """Settings of a hub over those of the node's file (``weft.commands.edge_overlay.HubOverlay``)."""

    stored: StoredConfig
    """State in force: updated while the node runs."""
    is_unsaved: bool
    """True at a start while the disk has another state."""
    reads: int
    """Number of times that the file was read again."""

    @property
    def link(self) -> str | None:
        """Return the link whose hub may set something, by the file; None if none may."""
        ...

    @property
    def may_restart(self) -> bool:
        """Return whether the file allows settings that need a restart."""
        ...

    @property
    def own_urls(self) -> tuple[str, ...]:
        """Return the URLs of that link in the file, as of its last reading."""
        ...

    def unfit(self, digest: str) -> str:
        """Return why the confirmed configuration with a digest is not in force; empty if it is."""
        ...

    def lay(self, desired: ConfigDesired) -> EdgeConfig:
        """Return the file's configuration with the hub's over it, checked. Blocks; raises ``ConfigUnusable``."""
        ...

    def save(self, stored: StoredConfig) -> None:
        """Make a state durable. Blocks; raises ``OSError``."""


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
        self.one_at_a_time = asyncio.Lock()
        """Held from the reading of a configuration until it is applied."""
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
        async with self.one_at_a_time:
            try:
                await self._rotate()
                wanted = await asyncio.to_thread(self._file.read)
            except ConfigUnusable as error:
                self._refused = str(error)
                logger.error(
                    "%s is not valid, and the node could not start with it. The node keeps its settings: %s",
                    self._file.path,
                    error,
                )
                raise
            outcome = self.apply(wanted)
            if not outcome.applied and not outcome.restart:
                logger.info("no setting in %s has changed", self._file.path)
            return outcome

    async def _rotate(self) -> None:
        """Read the key of an encrypted data directory again."""
        try:
            await asyncio.to_thread(data_directory.rotate, self.running, self._wall_clock())
        except OSError as error:
            raise ConfigUnusable(f"the node keeps the key that it has: {error}") from None

    def apply(self, wanted: EdgeConfig) -> ChangeResult:
        """Apply the settings that can change while the node runs.

        It is one callback of the loop, so no publish sees only some of the parts changed.

        Raises:
            ConfigUnusable: nothing has changed. A part has refused, or the new sections contradict settings that need
                a restart.
        """
        now = self._within_reach(wanted)
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

    def restart_for(self, wanted: EdgeConfig) -> list[str]:
        """Return the settings of a configuration for which the node has to start again."""
        return sorted(changed_settings(self._within_reach(wanted), wanted))

    def _within_reach(self, wanted: EdgeConfig) -> EdgeConfig:
        """Return the running configuration with the sections of another one that can change while the node runs."""
        return msgspec.structs.replace(self.running, streams=wanted.streams, links=wanted.links, sources=wanted.sources)

    def facts(self) -> dict[str, Any]:
        """Return the section of the status about the configuration."""
        return {**self.version._asdict(), "restart": list(self._restart), "refused": self._refused}

    def _switch(self, now: EdgeConfig, restart: list[str]) -> None:
        findings = check(now)
        if findings:
            text = "; ".join(f"{format_path(path)}: {message}" for path, message in findings[:NAMED_MAX])
            raise ConfigUnusable(f"{text}. Restart the node, as {_named(restart)} changed with it" if restart else text)
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


class OverlaidNode:
    """A running node whose hub may lay settings over those of its file (``TrialNode``).

    Args:
        reconfigure: the node's; it is there once the node has started.
        links: status of each link.
        restart: has the node end, to start again.
    """

    def __init__(
        self,
        overlay: Overlay,
        reconfigure: Callable[[], Reconfigure],
        links: Callable[[], Sequence[LinkStatus]],
        restart: Callable[[], None],
    ) -> None:
        self._overlay = overlay
        self._reconfigure = reconfigure
        self._links = links
        self.restart = restart

    @property
    def alone(self) -> asyncio.Lock:
        """Return the lock under which a configuration is read and applied."""
        return self._reconfigure().one_at_a_time

    @property
    def may_restart(self) -> bool:
        """Return whether the file allows settings that need a restart."""
        return self._overlay.may_restart

    @property
    def is_off(self) -> bool:
        """Return whether the file allows the hub nothing any more."""
        return self._overlay.link is None

    @property
    def reads(self) -> int:
        """Return the number of times that the file was read again."""
        return self._overlay.reads

    async def prepare(self, desired: ConfigDesired) -> Prepared:
        """Lay a configuration over the file, and check the whole.

        Raises:
            Unfit: it is not valid, or has what a hub may not set.
        """
        try:
            wanted = await asyncio.to_thread(self._overlay.lay, desired)
        except ConfigUnusable as error:
            raise Unfit(str(error)) from None
        return Prepared(wanted, self._reconfigure().restart_for(wanted))

    def apply(self, prepared: Prepared) -> None:
        """Apply a configuration to the running node.

        Raises:
            Unfit: nothing has changed.
        """
        try:
            self._reconfigure().apply(prepared.config)
        except ConfigUnusable as error:
            raise Unfit(str(error)) from None

    def running(self) -> Prepared:
        """Return the configuration that the node runs with."""
        return Prepared(self._reconfigure().running, [])

    def link(self) -> LinkStatus | None:
        """Return the status of the link by which the hub may set something."""
        return next((link for link in self._links() if link.name == self._overlay.link), None)

    def own_urls(self) -> tuple[str, ...]:
        """Return the URLs of that link in the node's file alone."""
        return self._overlay.own_urls

    def unfit(self, digest: str) -> str:
        """Return why the confirmed configuration with a digest is not in force; empty if it is."""
        return self._overlay.unfit(digest)

    async def save(self, stored: StoredConfig) -> None:
        """Make a state durable, and keep it for a restart within this process.

        Raises:
            OSError: it may be durable or not.
        """
        await asyncio.to_thread(self._overlay.save, stored)


class DesiredPart(Part):
    """The configurations of a hub as a part of the node."""

    name = "hub configuration"

    def __init__(self, trial: ConfigTrial) -> None:
        self.trial = trial

    def start(self) -> None:
        """Take configurations, and continue with one on trial."""
        self.trial.start()

    async def close(self) -> None:
        """Stop."""
        await self.trial.close()

    def facts(self) -> dict[str, Any]:
        """Return the section of the status."""
        said = self.trial.statement()
        return {
            "hub_configuration": {
                "version": said.active_version,
                "outcome": ConfigOutcome(said.outcome).name.lower(),
                "about_version": said.version,
                "reason": said.reason,
            }
        }


def digest_of(config: EdgeConfig) -> str:
    """Return the prefix of a checksum of all settings."""
    return hashlib.blake2b(msgspec.json.encode(config, order="deterministic"), digest_size=4).hexdigest()


def _named(settings: Sequence[str]) -> str:
    more = len(settings) - NAMED_MAX
    return ", ".join(sorted(settings)[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


# Orders of a node's own command line, and what the node answers.


class NodeOrders:
    """One method an order, for ``Control``. They raise nothing: a refusal is the reply's ``error``."""

    def __init__(self, reconfigure: Reconfigure, replay: Replay, links: Links, shown: LinksPart) -> None:
        self._reconfigure = reconfigure
        self._replay = replay
        self._links = links
        self._shown = shown

    async def reload(self) -> ReloadReply:
        """Read the configuration again."""
        try:
            found = await self._reconfigure.reload()
        except ConfigUnusable as error:
            return ReloadReply(error=str(error))
        return ReloadReply(found.version.number, found.version.digest, found.applied, found.restart)

    async def replay(self, request: ReplayRequest) -> ReplayReply:
        """Give a stream's stored records to a function again."""
        from weft.edge_node.derived.stream import ReplayRefused

        try:
            progress = await self._replay(request.stream, request.into)
        except ReplayRefused as error:
            return ReplayReply(error=str(error))
        return ReplayReply(progress.rows, progress.left)

    async def links(self, request: LinksRequest) -> LinksReply:
        """Pause or resume links, and say how they are."""
        try:
            if request.action != "status":
                await self._links.pause(request.link, is_paused=request.action == "pause")
        except ValueError as error:
            return LinksReply(error=str(error))
        except OSError as error:
            return LinksReply(error=f"the order counts until the node stops, and cannot be stored: {error}")
        links = self._shown.of_all()
        return LinksReply({name: each for name, each in links.items() if request.link in ("", name)})
