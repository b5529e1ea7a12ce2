"""Spark's drivers as processes that tests kill: Python and Java in one group, with a temporary folder of their own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
import pyspark

from examples.demo.fabric import free_port
from spark_sinks.runtime.session import cache_directory, find_java_home
from tests.support.s3_servers import listens
from tests.support.spark_classes import QUICK
from tests.support.waiting import wait_until

GONE_S_MAX = 60.0
_POLL_S = 0.02


@contextlib.contextmanager
def temporary_of_spark() -> Iterator[dict[str, str]]:
    """Yield the variables of a Spark process that may be killed: what it leaves behind goes with the block."""
    # The name is short: Spark makes sockets in it, whose paths are bounded.
    with tempfile.TemporaryDirectory(prefix="job-", ignore_cleanup_errors=True) as folder:
        java = f"{QUICK} -Djava.io.tmpdir={folder}"
        yield {"TMPDIR": folder, "SPARK_SUBMIT_OPTS": java, "SPARK_LAUNCHER_OPTS": java}


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a driver, which leads a process group, and its Java; return when both have gone.

    Java holds folders that the next run opens, and writes into a temporary folder that is to be removed.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(GONE_S_MAX)  # or it stays in the group as a zombie
    until = time.monotonic() + GONE_S_MAX
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(_POLL_S)


# --- A standalone Spark cluster on this machine: a master and workers as processes of their own, which can be killed


START_S_MAX = 180.0
"""For a machine that has much else to do: it takes a few seconds."""
END_S_MAX = 30.0
DAEMON_MEMORY, EXECUTOR_MEMORY = "256m", "512m"
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_STARTED = re.compile(r"Starting Spark (?:master|worker) ")
_REGISTERED = re.compile(r"Registering worker ")


class SparkCluster:
    """A master and its workers on loopback. Their files and logs are in ``folder``.

    Args:
        workers: their number; each has one core.
        environment: for the workers, and so for executors and their Python, beside what a login shell has. The
            variables of this process are not passed on: a cluster's machines do not have them.
    """

    def __init__(self, folder: Path, workers: int = 2, environment: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        self._count = workers
        # A worker that is killed leaves what it has there.
        local = folder / "local"
        local.mkdir(exist_ok=True)
        self._environment = {**_bare(), "SPARK_LOCAL_DIRS": str(local), **(environment or {})}
        self._processes: dict[str, psutil.Popen] = {}

    @property
    def conf(self) -> dict[str, str]:
        """Return confs of a driver that fit this machine: small executors, everything on loopback."""
        return {
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.driver.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.extraJavaOptions": QUICK,
            "spark.sql.shuffle.partitions": "2",
            # Lost executors are expected here: a job must not end because of them.
            "spark.task.maxFailures": "20",
            "spark.deploy.maxExecutorRetries": "-1",
        }

    def __enter__(self) -> Self:
        try:
            self._start("master", [_MASTER, "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"])
            for number in range(self._count):
                self.start_worker(number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_worker(self, number: int) -> None:
        """Start a worker and wait until the master knows it."""
        before = len(_REGISTERED.findall(self._log("master")))
        work = self.folder / f"work-{number}"
        work.mkdir(exist_ok=True)
        self._start(
            f"worker-{number}",
            [
                _WORKER,
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                str(work),
                self.master,
            ],
        )
        self._await(lambda: len(_REGISTERED.findall(self._log("master"))) > before, f"worker {number} to register")

    def kill_worker(self, number: int) -> None:
        """Kill a worker and its executors, as when a machine goes."""
        process = self._processes.pop(f"worker-{number}")
        _kill([*_tree(process), process])

    def executors(self) -> list[psutil.Process]:
        """Return the Java processes of the executors that run now."""
        found = []
        for name, worker in self._processes.items():
            if name != "master":
                found += [each for each in _tree(worker) if _EXECUTOR in _command(each)]
        return found

    def kill_executor(self, choose: Callable[[list[psutil.Process]], psutil.Process]) -> bool:
        """Kill one executor with its Python workers. Return whether there was one."""
        running = self.executors()
        if not running:
            return False
        chosen = choose(running)
        _kill([*_tree(chosen), chosen])
        return True

    @contextmanager
    def connect_server(self) -> Iterator[str]:
        """Run a Spark Connect server whose executors are on the cluster; yields its ``sc://`` address."""
        port = free_port()
        confs = {
            **self.conf,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.ui.enabled": "false",
        }
        home = Path(pyspark.__file__).parent
        with (self.folder / "connect.log").open("ab") as log:
            process = psutil.Popen(
                [
                    str(home / "bin" / "spark-submit"),
                    "--class",
                    _CONNECT,
                    "--master",
                    self.master,
                    *(part for name, value in confs.items() for part in ("--conf", f"{name}={value}")),
                    "spark-internal",
                ],
                env={**self._environment, "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "600m"},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._await(lambda: listens(port) or _ended(process), "the Connect server to listen")
            assert process.poll() is None, self._log("connect")[-2000:]
            yield f"sc://127.0.0.1:{port}"
        finally:
            _kill([*_tree(process), process])

    def log(self) -> str:
        """Return what the daemons and the executors have written."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("work-*/*/*/std*")]
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')}" for path in sorted(paths))

    def close(self) -> None:
        """End every process."""
        for process in self._processes.values():
            _kill([*_tree(process), process])
        self._processes.clear()

    def _start(self, name: str, command: list[str]) -> None:
        home = Path(pyspark.__file__).parent
        path = self.folder / f"{name}.log"
        before = len(_STARTED.findall(self._log(name)))
        with path.open("ab") as log:
            self._processes[name] = psutil.Popen(
                [str(home / "bin" / "spark-class"), *command],
                env=self._environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        process = self._processes[name]

        def started() -> bool:
            assert process.poll() is None, f"{name} ended: {self._log(name)[-2000:]}"
            return len(_STARTED.findall(self._log(name))) > before

        self._await(started, f"{name} to start")

    def _log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @staticmethod
    def _await(holds: Callable[[], bool], what: str) -> None:
        wait_until(holds, START_S_MAX, what, interval_s=0.1)


def _bare() -> dict[str, str]:
    """Return the environment of a cluster's machine: none of the test run's variables, none of the code's paths."""
    home = Path(pyspark.__file__).parent
    java = find_java_home(os.environ, cache_directory())
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        "LANG": "C.UTF-8",
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
        # Monitors read performance data from a folder of the temporary directory, which would stay.
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
        **({"JAVA_HOME": java} if java else {}),
    }


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _ended(process: psutil.Popen) -> bool:
    return process.poll() is not None


def _kill(processes: list[psutil.Process]) -> None:
    for each in processes:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, END_S_MAX)


@contextmanager
def driver(script: Path, *arguments: str, log: Path) -> Iterator[psutil.Popen]:
    """Run a driver as a process of its own, with a pipe from its standard output; its tree ends with the block."""
    with log.open("ab") as errors:
        process = psutil.Popen(
            [sys.executable, str(script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield process
    finally:
        _kill([*_tree(process), process])
