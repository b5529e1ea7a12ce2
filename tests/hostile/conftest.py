from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import MEASURED_AGAIN
from tests.hostile.hub import GuardedHub
from tests.support.steps import ProcessGuard, guarded


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(MEASURED_AGAIN)


@pytest.fixture(scope="package", autouse=True)
def guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGuard]:
    with guarded(tmp_path_factory.mktemp("steps") / "long") as found:
        yield found


@pytest.fixture(autouse=True)
def short_steps(guard: ProcessGuard) -> Iterator[None]:
    """No attack makes one step of an attacked process long."""
    yield
    guard.check()


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[GuardedEdge]:
    node = GuardedEdge(tmp_path)
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def edge_with_amqp(tmp_path: Path) -> Iterator[GuardedEdge]:
    node = GuardedEdge(tmp_path, amqp=True)
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[GuardedHub]:
    node = GuardedHub(tmp_path)
    node.start()
    try:
        yield node
    finally:
        node.stop()
