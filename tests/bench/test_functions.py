"""The benchmark of edge functions: its configurations are good, and its parts add up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.brokers import merged
from bench.functions import KEYS, cases, write_payloads
from bench.profiling import OTHER, Spent, flame_graph, seconds_by_part
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.derived.definitions import definitions

STACKS = """\
thread (7): MainThread;run (weft/service/loop.py:1);read (weft/edge_node/derived/stream.py:5) 3
thread (7): MainThread;run (weft/service/loop.py:1);process (weft/functions/thinning.py:9);go (x.py:1) 1
thread (8): weft-log-writer;sync (weft/storage/filesystem.py:3) 1000
thread (8): weft-log-writer;encode (weft/protocols/batch.py:7) 2
thread (9): other;sleep (threading.py:1) 5
"""


def test_the_processor_time_of_threads_is_parted_by_their_samples(tmp_path: Path) -> None:
    (tmp_path / "stacks").write_text(STACKS)
    spent = {7: Spent(3.0, 1.0), 8: Spent(2.0, 0.5), 11: Spent(0.25, 0.0)}
    found = {"functions: read the log": 3.0, "batches": 2.0, "functions: kinds": 1.0, "log: commit and sync": 0.5}
    assert seconds_by_part(tmp_path / "stacks", spent) == found | {OTHER: 0.25}


def test_a_flame_graph_has_the_share_of_each_call_and_no_waits() -> None:
    stacks = [
        "thread (7): MainThread;main (weft/cli.py:3);run_until_stopped (weft/service/serving.py:1);read (libc.so.6) 3",
        "thread (7): MainThread;run_until_stopped (weft/service/serving.py:9);decode <all> (weft/protocols/x.py:2) 4",
        "thread (7): MainThread;run_until_stopped (weft/service/serving.py:9);decode <all> (weft/protocols/x.py:8) 1",
        "thread (7): MainThread;run_until_stopped (weft/service/serving.py:1);epoll_pwait (libc.so.6) 9",
        "thread (8): weft-log-writer;WriterThread._run (weft/storage/segment_log/commit.py:1);write (libc.so.6) 2",
    ]
    names = re.findall("<title>(.*?)</title>", flame_graph(stacks, "a node"))
    assert names == [
        "a node: 100.0%",
        "MainThread: 80.0%",
        "run_until_stopped (service/serving.py): 80.0%",
        "decode &lt;all&gt; (protocols/x.py): 50.0%",
        "read: 30.0%",
        "weft-log-writer: 20.0%",
        "WriterThread._run (storage/segment_log/commit.py): 20.0%",
        "write: 20.0%",
    ]


@pytest.mark.parametrize("name", [*cases("10s")])
def test_the_node_of_a_case_is_one_that_starts(tmp_path: Path, name: str) -> None:
    base = {"node": "bench", "data_dir": "data", "streams": {"load": {"from": "plant/{line}/{machine}/telemetry"}}}
    case = cases("10s")[name]
    config = parse(json.dumps(merged(base, case.edge().settings)), str(tmp_path / "edge.yaml"), EdgeConfig).config
    found = list(definitions(config))
    assert len(found) == bool(case.functions)
    assert all(each.make_chain() for each in found)


def test_payloads_are_json_of_ten_thousand_sensors(tmp_path: Path) -> None:
    written = {name: path.read_bytes().splitlines() for name, path in write_payloads(tmp_path).items()}
    sensors = {json.loads(line)["sensor"] for line in written["keyed"]}
    assert len(sensors) == KEYS
    assert all("temp" in json.loads(line) for line in written["compact"])
    assert all("temp" in json.loads(line)["data"] for line in written["raw"])
