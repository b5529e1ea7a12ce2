"""A real Kafka for tests and benchmarks: one KRaft node on loopback, and the jars of Spark's connector, from Maven."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark

from examples.demo.fabric import free_port
from spark_sinks.runtime.session import NoJava, cache_directory, find_java_home
from tests.support.brokers import answers
from tests.support.third_party import KAFKA, KAFKA_CONNECTOR
from tests.support.waiting import wait_until

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
