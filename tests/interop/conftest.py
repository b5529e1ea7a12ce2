from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.conftest import Broker
from tests.interop.peers import LIBRARIES, Message, MqttJs, Options, Peer
from tests.support.third_party import MQTT_JS

_numbers = itertools.count()

Connect = Callable[..., Awaitable[Peer]]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = Broker(tmp_path_factory.mktemp("interop"))
    started.start()
    yield started
    started.kill()


@pytest.fixture(scope="session")
def mqttjs() -> Path:
    """A folder with MQTT.js in it."""
    try:
        MqttJs.folder = MQTT_JS.obtain()
    except LookupError as error:
        pytest.skip(str(error))
    return MqttJs.folder


def _parameters() -> Iterator[object]:
    for name, library in LIBRARIES.items():
        for version in library.versions:
            marks = [pytest.mark.slow] if name == "mqttjs" else []
            yield pytest.param((name, version), id=f"{name}-v{version}", marks=marks)


@pytest.fixture(params=list(_parameters()))
def library(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Each library with each version of the protocol that it speaks."""
    name, version = request.param
    if name == "mqttjs":
        request.getfixturevalue("mqttjs")
    if reason := getattr(LIBRARIES[name], "missing", None):
        pytest.skip(reason)
    return name, version


@pytest.fixture
async def connect(broker: Broker, library: tuple[str, int]) -> AsyncIterator[Connect]:
    """Connects clients of the library; those that are still there are dropped when the test ends."""
    name, version = library
    peers: list[Peer] = []

    async def connect_peer(client_id: str = "", *, persistent: bool = False, will: Message | None = None) -> Peer:
        client_id = client_id or f"interop-{next(_numbers)}"
        peer = LIBRARIES[name](Options(broker.port, client_id, version, persistent, will))
        await peer.connect()
        peers.append(peer)
        return peer

    yield connect_peer
    for peer in peers:
        with contextlib.suppress(Exception):  # most are gone
            await peer.drop()


@pytest.fixture(params=["kept", pytest.param("live", marks=pytest.mark.slow)])
def topic(request: pytest.FixtureRequest) -> str:
    """Of a stream that is kept on disk, and of none."""
    return f"{request.param}/interop/{next(_numbers)}"


@pytest.fixture
def client_id() -> str:
    return f"interop-session-{next(_numbers)}"
