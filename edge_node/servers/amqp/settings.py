"""Settings of AMQP clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.bounds import one_share
from weft.config.intake.listeners import protocol_of
from weft.config.models import EdgeConfig
from weft.protocols.amqp.frames import FRAME_BYTES_MIN

HANDSHAKE_FRAME_BYTES_MAX = 2 * FRAME_BYTES_MIN
"""Longest frame before connection.tune-ok: its sender is not known yet. RabbitMQ has the same limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpSettings:
    """Bounds on AMQP clients. connection.tune announces the first three."""

    frame_bytes_max: int = 128 << 10
    """Longest frame."""
    channels_max: int = 2047
    """Channels of one connection."""
    heartbeat_s: int = 60
    channels_total_max: int = 65_536
    """Channels of all connections."""
    channels_per_user_max: int = 16_384
    message_bytes_max: int = 1 << 20
    """Longest body; a longer one ends the channel with reply code 311."""
    software: str = "weft"
    """Name and version, for server properties."""
    vhosts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Listener -> virtual host -> prefix of its topics, empty for none."""

    @classmethod
    def of(cls, config: EdgeConfig, software: str) -> AmqpSettings:
        """Return the bounds that a configuration sets."""
        queues = config.queues
        vhosts: dict[str, Mapping[str, str]] = {
            name: {vhost: prefix or "" for vhost, prefix in listener.vhosts.items()}
            for name, listener in config.listeners.items()
            if listener is not None and listener.vhosts is not None and protocol_of(name, listener) == "amqp"
        }
        return cls(
            channels_total_max=queues.channels,
            channels_per_user_max=one_share(queues.channels_per_user, queues.channels),
            message_bytes_max=config.limits.message_bytes,
            software=software,
            vhosts=vhosts,
        )

    def prefix_of(self, listener: str, vhost: str) -> str | None:
        """Return the topic prefix of a virtual host; None for an unknown one."""
        vhosts = self.vhosts.get(listener)
        return (vhosts or {"/": ""}).get(vhost or "/")
