"""The MQTT benchmark: which cases are chosen, what is given to the node, and when a target is met."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from bench.brokers import Edge, weft
from bench.mqtt.__main__ import parse_settings
from bench.mqtt.cases import CASES, GROUPS, IDLE, Target, choose
from bench.mqtt.compare import judged, medians, ratios
from bench.mqtt.lines import busy_machine, line, remarks
from weft.config.load import load
from weft.config.models import EdgeConfig


def figures(**changes: float) -> dict[str, Any]:
    return {
        "messages_per_s": 100.0,
        "ack_ms_p50": 1.0,
        "ack_ms_p99": 2.0,
        "server_cpu": 0.5,
        "server_us_per_message": 10.0,
        "write_amplification": 0.5,
        "messages_per_commit": 20.0,
        "generator_cpu": 0.2,
        "unacked": 0,
        "other_cores": 0.0,
        **changes,
    }


def result(ours: dict[str, Any], theirs: dict[str, Any] | None) -> dict[str, Any]:
    return {"title": "case", "weft": ours, "mosquitto": theirs, "targets": [], **ratios(CASES[0], ours, theirs)}


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert not set(names) & set(GROUPS)


def test_groups_and_names_choose_cases() -> None:
    assert choose(["v5", IDLE]) == {"v5", IDLE}
    assert choose(["rates"]) == {f"rate_{rate}_{count}" for rate in (100, 1000, 10000) for count in (10, 100, 1000)}
    assert choose(GROUPS) == {case.name for case in CASES} | {IDLE}


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no case or group 'rate'; there are .*rate_100_10"):
        choose(["rate"])


def test_settings_reach_the_node(tmp_path: Any) -> None:
    settings = parse_settings("commit_interval=5ms,disk.compression=none")
    assert settings["disk"] == {"compression": "none"}
    weft(tmp_path, 1883, 8080, None, Edge({"commit_interval": "5ms", "disk": {"compression": "none"}}))
    config = load(str(tmp_path / "edge.yaml"), EdgeConfig).config
    assert config.disk.compression == "none"
    written = yaml.safe_load((tmp_path / "edge.yaml").read_text())
    assert written["commit_interval"] == "5ms"
    assert written["streams"]["load"]["from"] == "plant/{line}/{machine}/telemetry"


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="expected NAME=VALUE, got 'commit_interval'"):
        parse_settings("commit_interval")


def test_the_median_of_each_figure_counts() -> None:
    rounds = [figures(ack_ms_p99=p99, server_cpu=cpu) for p99, cpu in ((5, 0.1), (90, 0.3), (7, 0.2))]
    found = medians(rounds)
    assert (found["ack_ms_p99"], found["server_cpu"], found["generator_bound_rounds"]) == (7, 0.2, 0)


def test_rounds_in_which_the_generator_was_the_limit_are_told() -> None:
    busy = medians([figures(generator_cpu=cpu) for cpu in (0.95, 0.5, 0.91)])
    reported = remarks(result(medians([figures()]), busy), 3)
    assert reported == [
        "  generator above 90% of its core in 2 of 3 rounds with mosquitto: it may be the limit of that rate"
    ]


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (Target("cpu_ratio", 1.3), 1.3, True),
        (Target("cpu_ratio", 1.3), 1.31, False),
        (Target("rate_ratio", 3.0, at_least=True), 3.0, True),
        (Target("rate_ratio", 3.0, at_least=True), 2.99, False),
        (Target("ack_ms_p99", 5.0, plus_fsync=True), 5.2, True),
        (Target("ack_ms_p99", 5.0, plus_fsync=True), 5.3, False),
        (Target("cpu_ratio", 1.3), None, None),
    ],
)
def test_targets(target: Target, value: float | None, met: bool | None) -> None:
    assert judged(target, {target.figure: value}, fsync_ms=0.25)["met"] is met


def test_without_mosquitto_there_is_still_a_line() -> None:
    found = result(medians([figures()]), None)
    found["targets"] = [judged(Target("cpu_ratio", 1.3), found, 0.2)]
    assert "CPU <= 1.3: not compared" in line(found)


def test_disturbed_cases_are_named() -> None:
    quiet = {"name": "one", **result(medians([figures()]), None)}
    busy = {"name": "two", **result(medians([figures()]), medians([figures(other_cores=0.9)]))}
    assert busy_machine([quiet]) == ""
    assert busy_machine([quiet, busy]).startswith("other processes used more than 0.2 cores in 1 cases (two): ")
