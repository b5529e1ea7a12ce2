"""A real edge node with users and access rules, which tests attack."""

from __future__ import annotations

import functools
import json
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.demo.fabric import Service, free_port
from tests.support.processes import memory_bytes, weft
from tests.support.waiting import PATIENCE_S, wait_until
from weft.output import Failed

USERS = ("alice", "mallory", "device")
RULES = """\
user device
topic readwrite #
user alice
topic readwrite secret/#
topic readwrite plant/#
user mallory
topic readwrite public/#
"""
CONFIG = """\
node: press-1
data_dir: {folder}/data
listeners:
  mqtt: {{bind: "127.0.0.1:{mqtt}", anonymous: never}}
  http: {{bind: "127.0.0.1:{posts}", anonymous: never}}
  ws: {{bind: "127.0.0.1:{ws}", anonymous: never}}{listeners}
http: {{bind: "127.0.0.1:{http}"}}
auth: {{users_file: {folder}/users, acl_file: {folder}/acl}}
streams: {{telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry", payload: json}}{streams}}}
limits: {{{limits}}}
"""


@functools.cache
def users_file() -> str:
    """Return the content of a users file; made once, for a hash of a password takes its time on purpose."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for user in USERS:
            (folder / "password").write_text(f"{user}\n")
            added = weft("user", "add", user, "--file", folder / "users", "--password-file", folder / "password")
            assert not isinstance(added.exception, Failed), added.output
        return (folder / "users").read_text()


class GuardedEdge(Service):
    """An edge node whose users are ``USERS``, each with its name as its password.

    Args:
        limits: settings of the section of that name.
        streams: further streams.
        amqp: whether AMQP clients are served as well.
    """

    def __init__(self, folder: Path, limits: str = "", streams: str = "", *, amqp: bool = False) -> None:
        self.folder = folder
        self.mqtt_port, self.http_port, self.posts_port = free_port(), free_port(), free_port()
        self.amqp_port, self.ws_port = free_port(), free_port()
        (folder / "users").write_text(users_file())
        (folder / "acl").write_text(RULES)
        config = folder / "edge.yaml"
        text = CONFIG.format(
            folder=folder,
            mqtt=self.mqtt_port,
            http=self.http_port,
            posts=self.posts_port,
            limits=limits,
            streams=streams,
            ws=self.ws_port,
            listeners=f'\n  amqp: {{bind: "127.0.0.1:{self.amqp_port}", anonymous: never}}' if amqp else "",
        )
        config.write_text(text)
        super().__init__(folder, "edge", ["edge", "run", str(config)], f"http://127.0.0.1:{self.http_port}/status")

    def memory_bytes(self) -> int:
        """Return the memory that the node has taken."""
        return memory_bytes(self.pid)

    def metrics(self) -> str:
        """Return the node's metrics, as Prometheus reads them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=PATIENCE_S) as answer:
            text: str = answer.read().decode()
            return text

    def function_figures(self) -> dict[str, dict[str, Any]]:
        """Return the status of the derived streams, by name."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/status", timeout=PATIENCE_S) as answer:
            found: dict[str, dict[str, Any]] = json.load(answer)["functions"]
            return found

    def wait_for_functions(
        self, done: Callable[[dict[str, dict[str, Any]]], bool], patience_s: float
    ) -> dict[str, dict[str, Any]]:
        """Wait for figures of the derived streams, and return them."""
        found: dict[str, dict[str, Any]] = {}

        def is_done() -> bool:
            found.update(self.function_figures())
            return done(found)

        wait_until(is_done, patience_s, lambda: found, interval_s=0.1)
        return found

    def restart(self) -> None:
        """Kill the node and start it again."""
        self.kill()
        self.start()
