"""A real hub with tokens of two tenants, which tests attack."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from examples.demo.fabric import Service, free_port
from tests.support.processes import memory_bytes
from tests.support.tokens import create_token, declare_in, withdraw_in
from tests.support.waiting import wait_until
from weft.hub_api.rights import Scope

HOSTILE = ("evil", "mallory")
"""(tenant, edge) whose token tests use for their attacks."""
NEIGHBOUR = ("evil", "press-9")
"""Another edge of the attacker's own tenant."""
GOOD = ("good", "press-1")
EDGES = (HOSTILE, NEIGHBOUR, GOOD, ("good", "press-2"))
CONFIG = """\
listen: 127.0.0.1:{port}
store: {folder}/store
anonymous: never
shards: {shards}
processes: 1
commit_interval: 50ms
mark_interval: 500ms
tables: {tables}
limits: {{{limits}}}
"""


class GuardedHub(Service):
    """A hub with one token for each of ``EDGES``, a reader for each tenant, and an admin.

    Args:
        limits: settings of the section of that name.
        tables: setting of that name.
    """

    def __init__(self, folder: Path, limits: str = "", *, shards: int = 1, tables: str = "{interval: 1s}") -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        tokens = folder / "tokens"
        self._tokens: dict[str, str] = {}
        for tenant, edge in EDGES:
            self._tokens[f"{tenant}/{edge}"] = create_token(tokens, f"{tenant}-{edge}", Scope.EDGE, tenant, edge)
        for tenant in dict.fromkeys(tenant for tenant, _ in EDGES):
            self._tokens[tenant] = create_token(tokens, f"reader-{tenant}", Scope.READER, tenant)
        self.admin = create_token(tokens, "admin", Scope.ADMIN)
        declare_in(folder / "store", tokens, shards=shards)
        self.config_path = folder / "hub.yaml"
        self.configure(limits, shards=shards, tables=tables)
        super().__init__(folder, "hub", ["hub", "run", str(self.config_path)], f"{self.url}/readyz")

    def configure(self, limits: str = "", *, shards: int = 1, tables: str = "{interval: 1s}") -> None:
        """Write the configuration; a running hub keeps the one that it has."""
        self.config_path.write_text(
            CONFIG.format(port=self.port, folder=self.folder, limits=limits, shards=shards, tables=tables)
        )

    def token(self, tenant: str, edge: str | None = None) -> str:
        """Return an edge's token, or without an edge that of the tenant's reader."""
        return self._tokens[tenant if edge is None else f"{tenant}/{edge}"]

    def revoke(self, tenant: str, edge: str) -> None:
        """Revoke an edge's token."""
        withdraw_in(self.folder / "store", f"{tenant}-{edge}")

    def renew(self, tenant: str, edge: str) -> None:
        """Revoke an edge's token and give it another."""
        self.revoke(tenant, edge)
        path = self.folder / f"token-{tenant}-{edge}"
        path.unlink(missing_ok=True)
        token = self._tokens[f"{tenant}/{edge}"] = create_token(path, f"{tenant}-{edge}", Scope.EDGE, tenant, edge)
        declare_in(self.folder / "store", path)
        wait_until(lambda: self.get("/v1/whoami", token)[0] == 200, what="the new token to count")

    def get(self, path: str, token: str | None = None, timeout_s: float = 30.0) -> tuple[int, bytes]:
        """Return status and body of a GET request, with the admin's token unless another is given."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {token or self.admin}"})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def json(self, path: str, token: str | None = None) -> Any:
        """Return the JSON document at a path."""
        status, body = self.get(path, token)
        assert status == 200, body
        return json.loads(body)

    def metrics(self) -> dict[str, float]:
        """Return every sample of the metrics: name with labels -> value."""
        lines = self.get("/metrics")[1].decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def memory_bytes(self) -> int:
        """Return the memory that the hub has taken."""
        return memory_bytes(self.pid)

    def store_bytes(self) -> int:
        """Return the size of everything in the store."""
        return sum(
            os.path.getsize(os.path.join(folder, name))
            for folder, _, names in os.walk(self.folder / "store")
            for name in names
        )

    def restart(self) -> None:
        """Kill the hub and start it again."""
        self.kill()
        self.start()
