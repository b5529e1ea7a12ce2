"""Identity of a link's sender, and the settings of the link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from weft.network.tls.files import ClientTlsFiles
from weft.protocols.link import Clock
from weft.replication.settings import SenderSettings

TOKEN_BYTES_MAX = 4096


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


def no_token() -> None:
    """Return no token, for a hub without tokens."""


def read_token(path: str) -> str:
    """Return the token in the file ``path``. Blocks; raises ``OSError``, ``ValueError``."""
    with open(path, "rb") as file:
        data = file.read(TOKEN_BYTES_MAX + 1)
    words = data.decode("ascii", "replace").split()
    if not words:
        raise ValueError(f"{path} is empty: expected one token on one line. Write it there")
    if len(data) > TOKEN_BYTES_MAX or len(words) > 1:
        raise ValueError(f"{path}: expected one token on one line, got several words. Leave the token alone there")
    if not words[0].isprintable() or "\ufffd" in words[0]:
        raise ValueError(f"{path}: expected one token on one line, got characters that no token has. Write it again")
    return words[0]


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
