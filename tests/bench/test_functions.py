"""The benchmark of edge functions: its configurations are good, and its parts add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.brokers import merged
from bench.functions import KEYS, cases, write_payloads
from bench.stack_shares import OTHER, Spent, seconds_by_part
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
