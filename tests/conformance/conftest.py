from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.conformance.raw_client import Client
from tests.support.processes import EdgeProcess

CONFIG = """\
node: conformance
data_dir: {directory}/data
http: null
listeners:
  mqtt: {{bind: "127.0.0.1:{port}"}}
  ws: {{bind: "127.0.0.1:{web_port}", websocket: {{path: /mqtt}}}}
streams:
  kept: {{from: "kept/#"}}
limits:
  message: 64KiB
"""
PACKET_BYTES_MAX = 65_536

QUICK = ("test_connect.py", "test_messages.py", "test_qos.py")
"""The rest, about a thousand tests with many restarts of the node, is for ``./run test --all``.

So are two of the four combinations of a version of the protocol and a kind of topic: the others have each of both.
"""

Connect = Callable[..., Client]
_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and (item.path.name not in QUICK or is_repeat(item)):
            item.add_marker(pytest.mark.slow)


def is_repeat(item: pytest.Item) -> bool:
    """Whether a test shows the same with another version, or, without a version, with a topic that is kept."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    topic, version = parameters.get("topic"), parameters.get("version")
    return topic == ("kept" if version == 5 else "live")


class Broker(EdgeProcess):
    """The node that is tested."""

    def __init__(self, directory: Path, more: str = "") -> None:
        self.port, self.web_port = free_port(), free_port()
        text = CONFIG.format(directory=directory, port=self.port, web_port=self.web_port)
        super().__init__(directory, text + more)

    def stop(self) -> int:
        """SIGTERM; it ends without an error."""
        status = super().stop()
        assert status == 0
        return status


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The one that most tests share."""
    started = Broker(tmp_path_factory.mktemp("broker"))
    started.start()
    yield started
    started.kill()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """One that the test may stop, kill and start."""
    started = Broker(tmp_path)
    started.start()
    yield started
    started.kill()


@pytest.fixture
def client(broker: Broker) -> Iterator[Connect]:
    """Opens TCP connections to the shared broker, CONNECT not sent, and closes them when the test ends."""
    if not broker.is_running:
        broker.start()
    with contextlib.ExitStack() as stack:

        def open_client(version: int = 4) -> Client:
            opened = Client(broker.port, version)
            stack.callback(opened.drop)
            return opened

        yield open_client
    assert broker.is_running, "the broker died"


@pytest.fixture
def connected(client: Connect) -> Connect:
    """Opens connections that have sent CONNECT and were accepted."""

    def open_connected(client_id: str = "", version: int = 4, **options: Any) -> Client:
        opened = client(version)
        opened.connect(client_id, **options)
        return opened

    return open_connected


@pytest.fixture(params=[4, 5], ids=["v3", "v5"])
def version(request: pytest.FixtureRequest) -> int:
    """Both versions of the protocol."""
    return int(request.param)


@pytest.fixture
def client_id() -> str:
    """A client identifier that no other test uses."""
    return f"c{next(_numbers)}"


@pytest.fixture(params=["kept", "live"])
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of its own: of a stream that is kept on disk, and of none."""
    return f"{request.param}/t{next(_numbers)}"


@pytest.fixture
def live() -> str:
    """A topic of its own that no stream takes, for what does not depend on that."""
    return f"live/t{next(_numbers)}"
