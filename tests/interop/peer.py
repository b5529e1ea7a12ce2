"""One small interface for other people's MQTT clients, so that one suite asks the same of all of them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.waiting import PATIENCE_S

HOST = "127.0.0.1"
BURST_S_MAX = 60.0
SESSION_EXPIRY_S = 600
MOSQUITTO_MESSAGES = 100
"""After so many messages mosquitto_sub disconnects of its own accord. A signal cannot end it well: its handler takes a
lock, and hangs when it interrupts the handling of a packet."""
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Message:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    user_properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Options:
    """How a client connects."""

    port: int
    client_id: str
    version: int = 4
    persistent: bool = False
    will: Message | None = None


class Peer(ABC):
    """One client of one library. Messages it got before it was lost are not had from it any more."""

    versions: tuple[int, ...] = (4, 5)

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    async def connect(self) -> None:
        """Connect and wait until that is accepted."""

    @abstractmethod
    async def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe and wait for the answer."""

    @abstractmethod
    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, pairs: Pairs = ()) -> None:
        """Publish and, at QoS 1 and 2, wait until the broker has it."""

    @abstractmethod
    async def receive(self, seconds: float = PATIENCE_S) -> Message:
        """The next message. Raises TimeoutError."""

    @abstractmethod
    async def close(self) -> None:
        """Go with DISCONNECT."""

    @abstractmethod
    async def drop(self) -> None:
        """Go without a word."""


class Queued(Peer):
    """Messages wait in a queue that callbacks fill."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.messages: asyncio.Queue[Message] = asyncio.Queue()

    async def receive(self, seconds: float = PATIENCE_S) -> Message:
        return await asyncio.wait_for(self.messages.get(), seconds)
