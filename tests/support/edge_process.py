"""An edge node as a process that is killed and started again, on the same ports and data."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.support import forked
from tests.support.processes import Node


class EdgeProcess:
    """The node of one configuration; each start of it is a `Node`. A context, which kills it at the end.

    Args:
        folder: gets the configuration.
        text: of the configuration, with ports of its own.
        log: what the node writes to standard error is appended to it; the tests' own by default.
    """

    def __init__(self, folder: Path, text: str, log: Path | None = None) -> None:
        self.folder, self.log = folder, log
        self.config = folder / "edge.yaml"
        self.config.write_text(text)
        self._node: Node | None = None

    def start(self, environment: Mapping[str, str] = {}, popen: type[subprocess.Popen[Any]] = forked.Popen) -> None:
        """Start it and wait until it serves.

        Args:
            environment: variables beside those of the tests, or all of them.
            popen: `subprocess.Popen` starts an interpreter of its own, whose memory can be measured.
        """
        weft = [sys.executable, "-m", "weft"]
        if environment:
            others = (f"{name}={value}" for name, value in environment.items() if os.environ.get(name) != value)
            weft = ["env", *others, *weft]
        if self.log is None:
            self._node = Node("edge", self.config, weft, popen=popen)
            return
        with self.log.open("ab", buffering=0) as log:
            try:
                self._node = Node("edge", self.config, weft, log, popen)
            except AssertionError as failure:
                failure.add_note(self.log.read_text()[-3000:])
                raise

    @property
    def node(self) -> Node:
        """The process that was started last."""
        assert self._node is not None, "the node was never started"
        return self._node

    @property
    def pid(self) -> int:
        return self.node.process.pid

    @property
    def is_running(self) -> bool:
        return self._node is not None and self._node.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        if self.is_running:
            self.node.kill()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        return self.node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
