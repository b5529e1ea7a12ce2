"""When a node says that it is not well, or not ready."""

from __future__ import annotations

from pathlib import Path

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import open_log
from tests.support import live_node
from weft.edge_node.status.facts import Health

CONFIG = """\
node: a
data_dir: data
http: null
listeners: {mqtt: {bind: "127.0.0.1:0"}}
streams: {t: {from: "t/#"}}
"""


def test_a_failed_log_is_a_reason_to_start_again() -> None:
    log = open_log(FakeFileSystem())
    health = Health(log, lambda: False, lambda: True)
    assert (health.unhealthy(), health.unready()) == ([], [])
    log.committer.poison(OSError("the disk is gone"))
    (reason,) = health.unhealthy()
    assert "a write to the log failed" in reason
    assert health.unready() == [reason]
    assert "/" not in reason, "a probe learns no paths"
    log.close()


def test_a_failed_database_is_a_reason_to_start_again() -> None:
    log = open_log(FakeFileSystem())
    assert "the database of sessions failed" in Health(log, lambda: True, lambda: True).unhealthy()[0]
    log.close()


async def test_a_node_is_ready_from_its_start_until_its_listeners_close(tmp_path: Path) -> None:
    async with live_node.running(tmp_path, CONFIG) as node:
        health = Health(node.log, lambda: False, lambda: node.listeners.is_open)
        assert health.unready() == []
        node.listeners.stop()
        assert health.unready() == ["the listeners are not open"]
        assert health.unhealthy() == []
