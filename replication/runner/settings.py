"""Identity of a link's sender, and the settings of the link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from weft.network.tls.files import ClientTlsFiles
from weft.protocols.link import Clock
from weft.protocols.link.configuration import ConfigDesired, ConfigState
from weft.replication.runner.proxy import LinkProxy
from weft.replication.settings import SenderSettings


class LinkIdentity(NamedTuple):
    """Identity of a sender."""

    tenant: str
    edge: str
    log_id: int
    software: str
    boot: int = 0
    """Boot id of the machine, as in the log's batches."""


class ClockSource(Protocol):
    """The clocks of the sender's boots (``edge_node.links.boot_clocks``, which may not be imported here)."""

    @property
    def is_synchronised(self) -> bool:
        """Return whether a time source keeps the wall clock right."""
        ...

    @property
    def is_unknown(self) -> bool:
        """Return whether the records that arrive now have a time that nothing corrects yet."""
        ...

    def tell(self, hub: str, time: int, error: int) -> None:
        """Note the time of a receiver (``hub``; ns since 1970, within ``error`` ns)."""

    def notices(self) -> list[Clock]:
        """Return the clock notices about the log's boots, for the receiver."""
        ...


class ConfigDoor(Protocol):
    """The side of a node that takes configurations from a hub (``edge_node.links.desired``, which may not be imported
    here)."""

    def opened(self, cluster_id: str, tell: Callable[[ConfigState], None]) -> ConfigState:
        """Handle a new connection to a hub that knows the feature.

        Args:
            tell: sends a later statement, until ``closed``.

        Returns:
            The first statement.
        """
        ...

    def closed(self) -> None:
        """Handle the end of the connection."""

    def desire(self, desired: ConfigDesired, cluster_id: str) -> None:
        """Take a configuration; it is checked and applied later."""

    def own_urls(self) -> tuple[str, ...]:
        """Return the URLs that the link had without the hub's configuration, if that is confirmed and has others."""
        ...


def no_token() -> None:
    """Return no token, for a hub without tokens."""


@dataclass(frozen=True)
class LinkSettings:
    """One link of an edge node."""

    urls: tuple[str, ...]
    """Nodes of one hub, ``http(s)://host:port``; tried in turn."""
    token: Callable[[], str | None] = no_token
    """Source of the token, called in a thread before every attempt, so that a token can change without a restart. It
    may raise ``OSError`` and ``ValueError``, which the status shows."""
    tls: ClientTlsFiles = field(default_factory=ClientTlsFiles)
    """Files for ``https`` URLs. What has changed is read again before each attempt."""
    redirects: tuple[str, ...] | None = None
    """Hosts to which the hub may send the link on, ``*`` for any characters; None for those near ``urls``."""
    proxy: LinkProxy = field(default_factory=LinkProxy)
    """Proxy for all URLs."""
    retry_min_s: float = 0.5
    retry_max_s: float = 30.0
    conflict_retry_s: float = 300.0
    connect_timeout_s: float = 10.0
    hold_at_start_s: float = 0.0
    """Seconds for which a start waits for the hub's answer: each of several URLs is tried within this time."""
    sender: SenderSettings = field(default_factory=SenderSettings)

    def of_attempt(self, number: int) -> LinkSettings:
        """Return the settings of one attempt to connect, counted from 0 at the start."""
        if self.hold_at_start_s <= 0 or not 1 < len(self.urls) > number:
            return self
        share_s = self.hold_at_start_s / (len(self.urls) + 1)  # one more share for the answer
        return replace(self, connect_timeout_s=min(self.connect_timeout_s, share_s))
