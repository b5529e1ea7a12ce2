"""Edges with a hub's configuration: the trial, the validation and the files of a node, a clock and a network of the
test's."""

from __future__ import annotations

import asyncio
from pathlib import Path

from weft.commands.common import located_edge
from weft.commands.edge_overlay import HubOverlay
from weft.config.models import EdgeConfig
from weft.edge_node.links.desired import ConfigFolder, ConfigTrial, Prepared, StoredConfig, Unfit
from weft.edge_node.reconfigure import ConfigUnusable
from weft.protocols.link import ConfigDesired, ConfigLayer, ConfigOutcome, ConfigState, desired_of
from weft.replication.events import LinkStatus
from weft.storage.filesystem import OSFileSystem

HUB, CLUSTER = "https://hub.example.com", "5e1f60a2c3d84b7796a0b1c2d3e4f506"
FILE = """\
node: press-7
data_dir: data
listeners: {{mqtt: null}}
http: null
streams: {{telemetry: {{from: "plant/#"}}}}
links: {{cloud: {{to: "{hub}", config_from_hub: {allowed}}}}}
"""


def wanted(text: str, version: int = 7, name: str = "edge press-7") -> ConfigDesired:
    return desired_of([ConfigLayer(name, version, text)])


class Killed(BaseException):
    """The end of the process at one of its steps."""


class Steps:
    """A process that is killed at its n-th step, or never."""

    def __init__(self) -> None:
        self.count, self.kill_at = 0, -1
        self.names: list[str] = []

    def step(self, name: str) -> None:
        self.names.append(name)
        self.count += 1
        if self.count == self.kill_at:
            raise Killed(name)


class Disk(OSFileSystem):
    """The real file system; it may be full, and a process may be killed before and behind each change."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.is_full = False

    def create(self, path: str):  # type: ignore[no-untyped-def]
        self.steps.step("before the temporary file")
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().create(path)

    def rename(self, source: str, target: str) -> None:
        self.steps.step("before the rename")
        super().rename(source, target)
        self.steps.step("behind the rename")


class Edge:
    """An edge node without its parts. Its link is up while it names a hub that is there."""

    def __init__(self, folder: Path, allowed: str = "allowed") -> None:
        self.folder = folder
        self.file = folder / "edge.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        if not self.file.exists():
            self.file.write_text(FILE.format(hub=HUB, allowed=allowed))
        self.hubs = {HUB: CLUSTER}
        """URL -> cluster id of what answers there."""
        self.now = 0.0
        self.steps = Steps()
        self.disk = Disk(self.steps)
        self.said: list[ConfigState] = []
        self.restarts = 0
        self.wants_restart = False
        self.alone = asyncio.Lock()
        self.status = LinkStatus("cloud")
        self.start()

    # -- the process

    def start(self, stored: HubOverlay | None = None) -> None:
        """Start the process; or the node again in the same one."""
        if stored is None:
            local = located_edge(str(self.file))
            self.overlay = HubOverlay(str(self.file), local, ConfigFolder(self.disk, local.config.data_dir))
        self.config = self.overlay.begin().config
        self.wants_restart = False
        self.trial = ConfigTrial(
            self.overlay.stored, self, lambda: self.now, self._put, is_unsaved=self.overlay.is_unsaved
        )
        self._meet()

    def _put(self, stored: StoredConfig) -> None:
        self.overlay.stored = stored

    async def second(self) -> None:
        """Let a second pass."""
        self.now += 1.0
        self._meet()
        await self.trial.step()
        if self.wants_restart:
            self.restarts += 1
            self.start(self.overlay)

    async def seconds(self, count: int) -> None:
        for _ in range(count):
            await self.second()

    async def push(self, desired: ConfigDesired) -> None:
        self.trial.desire(desired, CLUSTER)
        await self.second()

    def _meet(self) -> None:
        """Connect the link, or lose it, as its URL says."""
        link = self.config.links.get("cloud")
        cluster = next((self.hubs[url] for url in link.to if url in self.hubs), None) if link is not None else None
        if cluster is not None and not self.status.is_taken:
            self.status.connections += 1
            self.said.append(self.trial.opened(cluster, self.said.append))
        elif cluster is None and self.status.is_taken:
            self.trial.closed()
            self.status.last_error = "connection refused"
        self.status.is_taken, self.status.cluster_id = cluster is not None, cluster or ""

    @property
    def is_up(self) -> bool:
        return self.status.is_taken and self.status.cluster_id == CLUSTER

    @property
    def outcome(self) -> tuple[ConfigOutcome, int, int]:
        """What the edge says: the outcome, the version that it is about, and the one in force."""
        said = self.trial.statement()
        return ConfigOutcome(said.outcome), said.version, said.active_version

    # -- the trial's side

    @property
    def may_restart(self) -> bool:
        return self.overlay.may_restart

    @property
    def is_off(self) -> bool:
        return self.overlay.link is None

    @property
    def reads(self) -> int:
        return self.overlay.reads

    def own_urls(self) -> tuple[str, ...]:
        return self.overlay.own_urls

    def unfit(self, digest: str) -> str:
        return self.overlay.unfit(digest)

    async def prepare(self, desired: ConfigDesired) -> Prepared:
        try:
            config = self.overlay.lay(desired)
        except ConfigUnusable as error:
            raise Unfit(str(error)) from None
        return Prepared(config, ["disk.budget"] if config.disk != self.config.disk else [])

    def apply(self, prepared: Prepared) -> None:
        self.steps.step("before it applies")
        assert isinstance(prepared.config, EdgeConfig)
        self.config = prepared.config
        self.steps.step("behind it applies")

    def running(self) -> Prepared:
        return Prepared(self.config, [])

    def restart(self) -> None:
        self.steps.step("before it restarts")
        self.wants_restart = True

    def link(self) -> LinkStatus | None:
        return self.status

    async def save(self, stored: StoredConfig) -> None:
        self.overlay.save(stored)
