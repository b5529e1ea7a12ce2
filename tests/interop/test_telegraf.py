"""The configuration of the how-to page in a real Telegraf, which writes to a real node that is killed meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.storage.segment_log.helpers import open_log
from tests.support.processes import Node, weft
from tests.support.waiting import PATIENCE_S, wait_until
from weft.edge_node.access import users
from weft.protocols.batch import Record, records
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogSettings

TELEGRAF = os.environ.get("TELEGRAF") or shutil.which("telegraf")
"""The program. Telegraf 1.37.2 builds in two minutes from its source, with the tags
`custom,inputs.tail,outputs.influxdb_v2,parsers.influx,serializers.influx`."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(TELEGRAF is None, reason="Telegraf is not installed, and TELEGRAF names no program"),
]
PAGE = Path(__file__).parents[2] / "docs/how-to/feed-from-telegraf.md"
AGENT = """\
[agent]
  interval = "100ms"
  flush_interval = "100ms"
  omit_hostname = true
[[inputs.tail]]
  files = ["{folder}/points"]
  from_beginning = true
  data_format = "influx"
  path_tag = ""
"""
KILLS = 2
ROUND = 400
"""Points between two kills."""
SENT = "weft.sent"


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path, port = tmp_path / "edge.yaml", free_port()
    text = block("yaml").replace("/var/lib/weft", "data").replace("8081", str(port))
    more = 'disk: {budget: 64MiB, segment: 4MiB}\nauth: {users_file: users}\nhttp: {bind: "127.0.0.1:0"}\n'
    path.write_text(text + more)
    users_file = tmp_path / "users"
    users_file.write_text(f"gateway:{users.hasher().hash('its-password')}\n")
    users_file.chmod(0o600)
    (tmp_path / "points").touch()
    (tmp_path / "telegraf.conf").write_text(AGENT.format(folder=tmp_path) + block("toml").replace("8081", str(port)))
    return path


@pytest.fixture
def telegraf(config: Path) -> Iterator[Path]:
    """What it says."""
    assert TELEGRAF is not None
    said = config.with_name("telegraf.log")
    with said.open("wb") as file:
        command = [TELEGRAF, "--config", str(config.with_name("telegraf.conf"))]
        running = subprocess.Popen(command, stdout=file, stderr=file)
        yield said
        running.terminate()
        running.wait(PATIENCE_S)


def stored(config: Path) -> list[Record]:
    """Records of a node that is dead."""
    settings = LogSettings(segment_bytes=4 << 20, budget_bytes=64 << 20, tail_bytes=0)
    log = open_log(OSFileSystem(), settings, directory=str(config.with_name("data")))
    number, found = log.streams()["metrics"], list[Record]()
    while batches := log.read(number, len(found), 1 << 22):
        found += [record for data in batches for record in records(data)]
    log.close()
    return found


def metrics(node: Node) -> int:
    count: int = node.json("status")["streams"]["metrics"]["durable_end"]
    return count


def await_more(node: Node, before: int) -> None:
    wait_until(lambda: metrics(node) > before, 60, "points at the node")


def newest(config: Path) -> bytes:
    line = weft("edge", "tail", config, "metrics", "--json", "--last", 1).stdout
    payload: str = json.loads(line)["payload"]
    return payload.encode()


def test_points_outlive_kills_of_the_node(config: Path, telegraf: Path) -> None:
    node, written = Node("edge", config), 0
    try:
        with config.with_name("points").open("a") as points:
            for kill in range(KILLS + 1):
                for _ in range(ROUND):
                    points.write(f"press,line=l4,host=g7 n={written}i,temp=21.5 {time.time_ns()}\n")
                    points.flush()
                    written += 1
                before = metrics(node)
                if kill == KILLS:
                    break
                await_more(node, before)
                node.kill()
                points.write(f"press,line=l4,host=g7 n={written}i,temp=21.5 {time.time_ns()}\n")
                points.flush()
                written += 1
                node = Node("edge", config)
        last = b'{"n":%d,"temp":21.5}' % (written - 1)  # Telegraf keeps the order, also when it sends again
        wait_until(lambda: newest(config) == last, 90, f"the last point; Telegraf says in {telegraf}")
        assert node.stop() == 0
    finally:
        node.kill()
    found = stored(config)
    assert {record.key for record in found} == {b"telegraf/press/g7/l4"}
    names = Counter((record.key, dict(record.headers)[SENT]) for record in found)
    payloads = {record.payload for record in found}
    assert payloads == {b'{"n":%d,"temp":21.5}' % number for number in range(written)}
    assert len(names) == len(payloads), "a point that came twice is known by its topic and its time"
