from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.hub import GuardedHub


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
