from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import STOP_S_MAX, Log, Node
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store


@pytest.fixture
def log_of_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """What the processes of the test have written to standard error, also where `log` is a log of records."""
    with Log(tmp_path_factory.mktemp("log") / "stderr") as found:
        yield found


@pytest.fixture
def log(log_of_nodes: Log) -> Log:
    return log_of_nodes


@pytest.fixture
def start(log_of_nodes: Log) -> Iterator[Callable[[str, Path], Node]]:
    """Starts nodes and ends them, whatever the test did."""
    with contextlib.ExitStack() as stack:

        def start_node(kind: str, config: Path) -> Node:
            node = Node(kind, config, stderr=log_of_nodes.file)
            stack.callback(node.process.wait, STOP_S_MAX)
            stack.callback(node.process.kill)
            return node

        yield start_node


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A hub's configuration with a store that a hub has used."""
    path = tmp_path / "hub.yaml"
    path.write_text("listen: 127.0.0.1:8090\nstore: store\n")
    asyncio.run(open_cluster(open_store(str(tmp_path / "store")), 2))
    return path
