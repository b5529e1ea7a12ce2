"""An edge node as a real process, and what clients see of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.demo.fabric import free_port
from tests.support.edge_process import EdgeProcess

STREAM = "load"

EDGE_YAML = """\
node: cut
data_dir: {tree}
listeners:
  mqtt: {{bind: "127.0.0.1:{mqtt}"}}
http: {{bind: "127.0.0.1:{http}"}}
disk: {{budget: {budget}, segment: {segment}}}
streams:
  load: {{{stream}}}
"""


class LoadedNode(EdgeProcess):
    """A node with its data in ``tree``, in whose one stream devices count."""

    def __init__(
        self, folder: Path, tree: Path, *, budget: str = "64MiB", segment: str = "1MiB", more: str = "", links: str = ""
    ) -> None:
        """Write the configuration.

        Args:
            more: further settings of the stream, such as ``when_full: drop_oldest``.
            links: a section to append.
        """
        self.tree = tree
        self.mqtt = free_port()
        stream = 'from: "load/{device}/count"' + (f", {more}" if more else "")
        text = EDGE_YAML.format(
            tree=tree, mqtt=self.mqtt, http=free_port(), budget=budget, segment=segment, stream=stream
        )
        super().__init__(folder, text + links, folder / "node.log")

    def status(self) -> Any:
        """Its status document."""
        return self.node.json("status")
