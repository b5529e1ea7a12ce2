"""A process that ends right after requests of a library's threads ends with the status that it means."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.waiting import PATIENCE_S

pytest.importorskip("obstore")

CHILD = """
import asyncio
from weft.storage.object_store import StoreError, open_store

# Nothing listens on port 1: answers come at once, many together, and the process ends.
store = open_store("s3://bucket", {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "x", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"
})

async def ask(number):
    try:
        await store.create(f"k{number}", b"")
    except StoreError:
        pass

async def ask_much():
    await asyncio.gather(*(ask(number) for number in range(16)))

asyncio.run(ask_much())
raise SystemExit(3)
"""
CHILDREN = 12
"""Without the wait 17 of 40 aborted beside other work: none of 12 does once in a thousand runs."""


@pytest.mark.slow
def test_a_process_ends_with_its_own_status_right_after_requests() -> None:
    command = [sys.executable, "-c", CHILD]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(CHILDREN)]
    ends = [(child.communicate(timeout=PATIENCE_S)[1], child.returncode) for child in children]
    assert ends == [("", 3)] * CHILDREN
