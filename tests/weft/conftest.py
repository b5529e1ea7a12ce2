from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import STOP_S_MAX, Log, Node


@pytest.fixture
def start() -> Iterator[Callable[[str, Path], Node]]:
    """Starts nodes and ends them, whatever the test did."""
    with contextlib.ExitStack() as stack:

        def start_node(kind: str, config: Path) -> Node:
            node = Node(kind, config)
            stack.callback(node.process.wait, STOP_S_MAX)
            stack.callback(node.process.kill)
            return node

        yield start_node


@pytest.fixture
def log(capfd: pytest.CaptureFixture[str]) -> Log:
    """What the processes of the test have written to standard error."""
    return Log(capfd)
