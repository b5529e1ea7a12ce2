"""All sources of a node: started, stopped, changed while the node runs."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, cast

from weft.config.models import EdgeConfig
from weft.config.sources import Source
from weft.edge_node.sources.connection import Runner, SourceContext
from weft.edge_node.sources.credentials import library_missing
from weft.edge_node.sources.mqtt import MqttRunner, SessionFile
from weft.edge_node.sources.notices import GapFile
from weft.edge_node.sources.status import SourceStatus
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.encryption import disk_of

if TYPE_CHECKING:
    from weft.edge_node.sources.writes import Writable, Writes


class Sources:
    """The sources of a configuration. Event loop's thread only."""

    def __init__(
        self,
        config: EdgeConfig,
        node: SourceContext,
        *,
        filesystem: FileSystem | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Create the sources of a configuration; ``start`` connects them.

        Raises:
            ValueError: a source cannot work.
        """
        self._node = node
        self._config = config
        self._filesystem = filesystem or disk_of(config.data_dir)
        self._rng = rng or random.Random()
        self._runners = {name: self._made(config, name, source) for name, source in config.sources.items()}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._writes: dict[str, Writes] = {}
        self._ended: set[asyncio.Task[None]] = set()
        """Tasks of removed or changed sources that are still ending."""
        self._is_started = False

    @property
    def statuses(self) -> list[SourceStatus]:
        """Return the status of each source, in the order of the configuration."""
        return [runner.status for runner in self._runners.values()]

    def start(self) -> None:
        """Connect every source; sources connect again after trouble by themselves."""
        self._is_started = True
        for name in self._runners:
            self._start(name)

    def adopt(self, config: EdgeConfig) -> None:
        """Run the sources of another configuration of the same node from now on. Unchanged sources continue.

        A changed source connects once its former connection has ended: two of them would take the session from each
        other.

        Raises:
            ValueError: a source cannot work; nothing has changed.
        """
        before = self._config.sources
        runners = {
            name: self._runners[name] if before.get(name) == source else self._made(config, name, source)
            for name, source in config.sources.items()
        }
        changed = [name for name, runner in runners.items() if self._runners.get(name) is not runner]
        leaving = {name: self._tasks.pop(name) for name in list(self._tasks) if name in changed or name not in runners}
        for name, task in leaving.items():
            if (writes := self._writes.pop(name, None)) is not None:
                writes.stop()  # now: the connection's end takes seconds, and what it wrote by then, other settings
            self._runners[name].replaced(config.sources.get(name))
            task.cancel()
            self._ended.add(task)
            task.add_done_callback(self._ended.discard)
        self._config, self._runners = config, runners
        if self._is_started:
            for name in changed:
                self._start(name, leaving.get(name))

    async def close(self) -> None:
        """Stop every source: its messages are acknowledged once they are on disk, and all others come again."""
        for writes in self._writes.values():
            writes.stop()
        tasks = [*self._tasks.values(), *self._ended]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    def _start(self, name: str, after: asyncio.Task[None] | None = None) -> None:
        runner = self._runners[name]

        async def run() -> None:
            if after is not None:
                await asyncio.wait([after])
            writes = self._writes_of(name, runner)
            try:
                await runner.run()
            finally:
                if writes is not None:
                    await writes.close()

        self._tasks[name] = asyncio.create_task(run(), name=f"source {name}")

    def _writes_of(self, name: str, runner: Runner) -> Writes | None:
        """Have messages write values of a source, if it has some that they may write."""
        source = self._config.sources[name]
        settings = source.modbus or source.opcua
        if settings is None or not settings.writes:
            return None
        from weft.edge_node.sources.writes import Writes

        writes = self._writes[name] = Writes(name, settings.writes, cast("Writable", runner), self._node, runner.topics)
        writes.start()
        return writes

    def _made(self, config: EdgeConfig, name: str, source: Source) -> Runner:
        if source.mqtt is not None:
            client_id = f"weft-{config.tenant}-{config.node}-{name}"
            file = SessionFile(self._filesystem, config.data_dir, name)
            status = SourceStatus(name, "mqtt")
            return MqttRunner(source.mqtt, status, self._node, self._rng, client_id, file)
        if missing := library_missing(source):
            raise ValueError(f"sources.{name} {missing}")
        # Imported here: they take megabytes, which nodes without such a source save.
        if source.modbus is not None:
            from weft.edge_node.sources.modbus import ModbusRunner

            gaps = GapFile(self._filesystem, config.data_dir, name)
            return ModbusRunner(source.modbus, SourceStatus(name, "modbus"), self._node, self._rng, gaps)
        if source.opcua is not None:
            from weft.edge_node.sources.opcua import OpcuaRunner
            from weft.edge_node.sources.opcua_subscription import StateFiles

            files = StateFiles(self._filesystem, config.data_dir, name)
            session = f"weft-{config.tenant}-{config.node}-{name}"
            status = SourceStatus(name, "opcua")
            return OpcuaRunner(source.opcua, status, self._node, self._rng, session, files)
        assert source.amqp is not None
        from weft.edge_node.sources.amqp import AmqpRunner

        return AmqpRunner(source.amqp, SourceStatus(name, "amqp"), self._node, self._rng, name)
