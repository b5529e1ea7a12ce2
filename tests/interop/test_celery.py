"""A Celery worker that runs tasks over the node: a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.test_amqp_clients import AmqpBroker
from tests.support.waiting import PATIENCE_S, wait_until

pytest.importorskip("celery", reason="celery is not installed")
import celery

pytestmark = [pytest.mark.processes, pytest.mark.slow]
TASKS = 200


class Work:
    """A node, a worker, and the application as a program has it that asks for tasks.

    Args:
        results: address of the result backend.
        kind: type of the queue.
    """

    def __init__(self, directory: Path, results: str, kind: str) -> None:
        self.node = AmqpBroker(directory)
        self.node.start()
        self.notes = directory / "notes"
        self.notes.touch()
        self.app = celery.Celery("work", broker=f"{self.node.url}/", backend=results)
        self.app.conf.update(
            broker_transport_options={"confirm_publish": True},
            task_default_queue="work",
            task_default_queue_type=kind,
            task_default_exchange_type="topic",
            result_persistent=False,
        )
        environment = {
            **os.environ,
            "WORK_BROKER": f"{self.node.url}/",
            "WORK_RESULTS": results,
            "WORK_NOTES": str(self.notes),
            "WORK_QUEUE": "work",
            "WORK_QUEUE_TYPE": kind,
        }
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "tests.interop.celery_app",
            "worker",
            "-P",
            "threads",
            "-c",
            "2",
        ]
        self.said = (directory / "worker.log").open("w+")
        self.worker = subprocess.Popen(command, env=environment, stdout=self.said, stderr=self.said)
        self.until(lambda: bool(self.app.control.inspect(timeout=1).ping()))

    def send(self, task: str, *arguments: Any, **options: Any) -> Any:
        return self.app.send_task(task, arguments, **options)

    def get(self, task: str, *arguments: Any, **options: Any) -> Any:
        return self.send(task, *arguments, **options).get(timeout=PATIENCE_S)

    def until(self, reached: Callable[[], bool]) -> None:
        def reached_or_ended() -> bool:
            assert self.worker.poll() is None, self.log()
            return reached()

        wait_until(reached_or_ended, 60, self.log)

    def log(self) -> str:
        self.said.flush()
        return Path(self.said.name).read_text()

    def ran(self) -> list[tuple[str, bool]]:
        """Texts of tasks that ran, and whether their message came again."""
        return [(line.split()[0], line.split()[1] == "1") for line in self.notes.read_text().splitlines()]

    def end(self) -> None:
        self.worker.send_signal(signal.SIGKILL)
        self.worker.wait()
        self.said.close()
        self.app.close()
        self.node.kill()


Start = Callable[..., Work]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Work] = []

    def begin(results: str = "rpc://", kind: str = "classic") -> Work:
        started.append(Work(tmp_path, results, kind))
        return started[0]

    yield begin
    for work in started:
        work.end()


def test_tasks_with_results_over_the_node(start: Start) -> None:
    """Results by rpc://, retries, tasks for later, and `celery inspect`, by fanout exchanges and reply queues."""
    work = start()
    assert work.get("add", 1, 2) == 3
    asked = [work.send("add", n, n) for n in range(50)]
    assert [each.get(timeout=PATIENCE_S) for each in asked] == [2 * n for n in range(50)]
    assert work.get("second_time", "x") == ["x", 1]
    begun = time.monotonic()
    assert work.get("add", 3, 4, countdown=1) == 7
    assert time.monotonic() - begun >= 0.9
    ((name, answer),) = work.app.control.inspect(timeout=PATIENCE_S, limit=1).ping().items()
    assert (name.split("@")[0], answer) == ("celery", {"ok": "pong"})
    assert "add" in work.app.control.inspect(timeout=PATIENCE_S, limit=1).registered()[name]


def test_chords_and_quorum_queues_with_delays_by_the_node(start: Start, tmp_path: Path) -> None:
    """Celery delays tasks of quorum queues by a row of queues with times to live and dead letters; chords wait for all
    of their tasks."""
    (tmp_path / "results").mkdir()
    work = start(f"file://{tmp_path / 'results'}", "quorum")
    assert "elayed delivery will not be available" not in work.log()
    adds = [work.app.signature("add", (n, n)) for n in range(10)]
    assert celery.chord(adds, app=work.app)(work.app.signature("total")).get(timeout=PATIENCE_S) == 90
    begun = time.monotonic()
    assert work.get("second_time", "x") == ["x", 1]
    assert work.get("add", 3, 4, countdown=2) == 7
    assert time.monotonic() - begun >= 1


def test_every_confirmed_task_runs_although_the_node_is_killed(start: Start) -> None:
    """SIGKILL of the node under a worker that acknowledges late: each task whose publish was confirmed is run, and one
    that is run twice came with the flag the second time."""
    work = start()
    confirmed = []
    work.worker.send_signal(signal.SIGSTOP)  # or it may have run them all by then
    for n in range(TASKS):
        work.send("note", f"t{n}", ignore_result=True)
        confirmed.append(f"t{n}")
    work.worker.send_signal(signal.SIGCONT)
    work.until(lambda: len(work.ran()) >= TASKS // 8)
    work.node.kill()
    before = len(work.ran())
    assert before < TASKS
    work.node.start()
    work.until(lambda: {text for text, _ in work.ran()} >= set(confirmed))
    ran = work.ran()
    seen: set[str] = set()
    for text, redelivered in ran:
        assert redelivered or text not in seen, f"{text} came again without the flag"
        seen.add(text)
    # What came again are tasks that the worker had when the node was killed.
    assert len(ran) - len(seen) <= 2 * 2 + 2
