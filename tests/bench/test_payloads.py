"""The payloads of the benchmarks are real, varied and always the same."""

from __future__ import annotations

import json
from itertools import pairwise

from bench import payloads


def test_telemetry_is_json_of_many_lengths() -> None:
    lines = payloads.telemetry()
    lengths = [len(line) for line in lines]
    assert len(set(lines)) == payloads.PAYLOADS
    assert 40 <= min(lengths) < 50
    assert 300 < max(lengths) <= 400
    assert len(set(lengths)) > 150
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_neighbours_differ_in_length() -> None:
    lines = payloads.telemetry()
    assert all(len(one) != len(other) for one, other in pairwise([*lines, lines[0]]))


def test_payloads_are_the_same_in_every_run() -> None:
    assert payloads.telemetry() == payloads.telemetry()


def test_no_payload_holds_a_line_end() -> None:
    for lines in (payloads.telemetry(), payloads.sensor(), payloads.random_bytes()):
        assert not any(b"\n" in line for line in lines)
