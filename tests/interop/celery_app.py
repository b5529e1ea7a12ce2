"""A Celery application: tasks of a worker that a test runs over the node. Its environment says where the broker is."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("work", broker=os.environ["WORK_BROKER"], backend=os.environ["WORK_RESULTS"])
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=2,
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_pool_limit=1,
    task_default_queue=os.environ["WORK_QUEUE"],
    task_default_queue_type=os.environ["WORK_QUEUE_TYPE"],
    task_default_exchange_type="topic",
    worker_detect_quorum_queues=True,
)


def add(first: int, second: int) -> int:
    return first + second


def total(numbers: list[int]) -> int:
    return sum(numbers)


def second_time(self: Any, text: str) -> list[Any]:
    """Succeed when it is tried again."""
    if not self.request.retries:
        raise self.retry(countdown=1)
    return [text, self.request.retries]


def note(self: Any, text: str) -> None:
    """Write down that it ran, and whether its message came before."""
    time.sleep(0.02)
    with Path(os.environ["WORK_NOTES"]).open("a") as notes:
        notes.write(f"{text} {int(bool(self.request.delivery_info.get('redelivered')))}\n")


for function in (add, total):
    app.task(name=function.__name__)(function)
for bound in (second_time, note):
    app.task(name=bound.__name__, bind=True, max_retries=3)(bound)
