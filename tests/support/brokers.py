"""Real brokers for tests: Mosquitto and RabbitMQ with folders and ports of their own, and a proxy that cuts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyspark
import pytest

from examples.demo.fabric import free_port
from spark_sinks.runtime.session import NoJava, cache_directory, find_java_home
from tests.support.third_party import KAFKA, KAFKA_CONNECTOR
from tests.support.waiting import PATIENCE_S, wait_until

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"
RABBITMQ_START_S = 120.0
needs_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed: apt install mosquitto")


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


SAVES_OFTEN = "autosave_interval 20\nautosave_on_changes true\n"
"""Mosquitto writes its state after so many changes; without it every half an hour."""


class Mosquitto:
    """One broker, which can be killed and started again with what it has on disk."""

    def __init__(self, folder: Path, more: str = "allow_anonymous true\n") -> None:
        assert MOSQUITTO is not None
        self.port = free_port()
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._config = folder / "mosquitto.conf"
        user = "user root\n" if os.geteuid() == 0 else ""  # else it gives up the right to its own folder
        self._config.write_text(
            f"{user}listener {self.port} 127.0.0.1\npersistence true\npersistence_location {folder}/\n"
            f"max_queued_messages 0\nlog_dest file {folder}/log\n{more}"
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        assert MOSQUITTO is not None
        self.process = subprocess.Popen([MOSQUITTO, "-c", str(self._config)], stderr=subprocess.DEVNULL)
        wait_until(lambda: answers(self.port), what="Mosquitto's start")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def mosquitto(folder: Path, more: str = "allow_anonymous true\n") -> Iterator[Mosquitto]:
    broker = Mosquitto(folder, more)
    try:
        yield broker
    finally:
        broker.kill()


class RabbitMq:
    """One broker, with an Erlang port mapper of its own, so that nothing of it is left."""

    def __init__(self, more: str = "", plugins: str = "", tls_port: int | None = None) -> None:
        """Start a broker.

        Args:
            more: lines of its configuration.
            plugins: names of those that it runs, separated by commas.
            tls_port: listens there with TLS as well; ``more`` names the certificates.
        """
        # Erlang's names of nodes and Unix sockets do not take the long paths of pytest.
        self.folder = Path(tempfile.mkdtemp(prefix="weft-rabbit-"))
        self.port, mapper, distribution = free_port(), free_port(), free_port()
        (self.folder / "plugins").write_text(f"[{plugins}].\n")
        if tls_port is not None:
            more = f"listeners.ssl.1 = 127.0.0.1:{tls_port}\n{more}"
        (self.folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n{more}")
        self.environment = {
            **os.environ,
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"weft{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(self.folder),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
            "RABBITMQ_NODE_PORT": str(self.port),
        }
        self._mapper = subprocess.Popen(
            ["epmd", "-port", str(mapper)], env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        output = (self.folder / "output").open("ab")
        self._process = subprocess.Popen(
            [RABBITMQ], env=self.environment, stdout=output, stderr=output, start_new_session=True
        )
        wait_until(lambda: answers(self.port), RABBITMQ_START_S, "RabbitMQ's start")

    def kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the script and Erlang, which are one group
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._mapper.kill()
        self._mapper.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Proxy:
    """Passes bytes on between a client and a broker, until it is to cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0
        self.accepted = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """End all connections as a dead network does: what is on the way is lost."""
        for writer in list(self._open):
            writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, forth}
        for source, target in ((reader, forth), (back, writer)):
            task = asyncio.create_task(self._pass_on(source, target, writer, forth))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *both: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        for each in both:
            each.transport.abort()
            self._open.discard(each)


@contextlib.asynccontextmanager
async def proxy(port: int) -> AsyncIterator[Proxy]:
    found = Proxy(port)
    await found.start()
    try:
        yield found
    finally:
        await found.close()


# --- A real Kafka for tests and benchmarks: one KRaft node on loopback, and the jars of Spark's connector, from Maven


VERSION = KAFKA.name.rpartition(":")[2]
START_S_MAX = 90.0
_SETTINGS = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={folder}/data
num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


@functools.cache
def connector_jars() -> str:
    """Return the jars of Spark's Kafka connector that Spark itself lacks, as ``spark.jars`` takes them.

    Raises:
        LookupError: they cannot be had here.
    """
    spark = {path.name.rpartition("-")[0] for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    return ",".join(path for path in KAFKA_CONNECTOR.jars() if Path(path).name.rpartition("-")[0] not in spark)


@functools.cache
def java() -> str:
    """Return the path of a Java runtime.

    Raises:
        LookupError: there is none.
    """
    try:
        home = find_java_home(os.environ, cache_directory())
    except NoJava as error:
        raise LookupError(str(error)) from None
    return "java" if home is None else str(Path(home) / "bin" / "java")


class Kafka:
    """One node, its topics made when they are first written to.

    Raises:
        LookupError: its jars or a Java cannot be had here.
    """

    def __init__(self) -> None:
        self._command = [java(), "-Xmx384m", "-XX:+UseSerialGC", "-cp", os.pathsep.join(KAFKA.jars())]
        self.folder = Path(tempfile.mkdtemp(prefix="weft-kafka-"))
        self.port = free_port()
        settings = _SETTINGS.format(port=self.port, controller=free_port(), folder=self.folder)
        (self.folder / "server.properties").write_text(settings)
        arguments = ["format", "-t", "d2VmdC10ZXN0cy1jbHVzdA", "-c", str(self.folder / "server.properties")]
        subprocess.run(
            [*self._command, "kafka.tools.StorageTool", *arguments],
            check=True,
            capture_output=True,
            timeout=START_S_MAX,
        )
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "kafka.Kafka", str(self.folder / "server.properties")], stdout=log, stderr=log
            )
        try:
            wait_until(lambda: answers(self.port) or self._has_ended(), START_S_MAX, "Kafka's start")
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _has_ended(self) -> bool:
        assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
        return False

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def kafka() -> Iterator[Kafka]:
    """Run a node.

    Raises:
        LookupError: its jars or a Java cannot be had here.
    """
    server = Kafka()
    try:
        yield server
    finally:
        server.close()
