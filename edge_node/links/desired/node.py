"""A node as the trial of a hub's configuration needs it."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, Protocol

from weft.edge_node.links.desired.stored import StoredConfig
from weft.protocols.link.configuration import ConfigDesired
from weft.replication.status import LinkStatus


class Unfit(Exception):
    """A configuration that cannot be applied; the message says why."""


class Prepared(NamedTuple):
    """A configuration that was checked."""

    config: Any
    """For ``TrialNode.apply``."""
    restart: list[str]
    """Settings for which the node has to start again."""


class TrialNode(Protocol):
    """The node as the trial of a configuration needs it."""

    async def prepare(self, desired: ConfigDesired) -> Prepared:
        """Lay a configuration over the node's file as it is now, and check the whole.

        Raises:
            Unfit: it is not valid, or has what a hub may not set.
        """
        ...

    def apply(self, prepared: Prepared) -> None:
        """Apply a configuration to the running node, as a whole.

        Raises:
            Unfit: nothing has changed.
        """

    def running(self) -> Prepared:
        """Return the configuration that the node runs with."""
        ...

    def restart(self) -> None:
        """Have the node end, and start again with the stored configuration."""

    @property
    def alone(self) -> asyncio.Lock:
        """Return the lock under which a configuration is read and applied."""
        ...

    @property
    def is_off(self) -> bool:
        """Return whether the node's file allows the hub nothing any more."""
        ...

    @property
    def reads(self) -> int:
        """Return the number of times that the node's file was read again."""
        ...

    @property
    def may_restart(self) -> bool:
        """Return whether the file allows settings that need a restart."""
        ...

    def link(self) -> LinkStatus | None:
        """Return the status of the link that configurations come by; None if there is no such link."""
        ...

    def own_urls(self) -> tuple[str, ...]:
        """Return the URLs of that link in the node's file alone."""
        ...

    def unfit(self, digest: str) -> str:
        """Return why the stored configuration with a digest is not in force; empty if it is."""
        ...

    async def save(self, stored: StoredConfig) -> None:
        """Make a state durable.

        Raises:
            OSError: it may be durable or not.
        """
