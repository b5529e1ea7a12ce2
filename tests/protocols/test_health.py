"""Answers to probes say the state and nothing else, in a bounded number of words."""

from __future__ import annotations

import json

from weft.protocols.health import REASONS_MAX, health_answer


def test_text_for_people_and_probes() -> None:
    assert health_answer("ready", [], "*/*") == (200, "text/plain", b"ready\n")
    assert health_answer("ready", ["the log is full", "x"], "") == (
        503, "text/plain", b"not ready: the log is full; x\n"
    )  # fmt: skip


def test_json_for_programs_that_ask_for_it() -> None:
    status, kind, body = health_answer("healthy", ["it failed"], "application/json, text/plain")
    assert (status, kind) == (503, "application/json")
    assert json.loads(body) == {"healthy": False, "reasons": ["it failed"]}
    assert json.loads(health_answer("healthy", [], "application/json").body) == {"healthy": True, "reasons": []}


def test_a_thousand_reasons_are_a_few_and_a_number() -> None:
    body = json.loads(health_answer("ready", [f"shard {n}" for n in range(1000)], "application/json").body)
    assert len(body["reasons"]) == REASONS_MAX + 1
    assert body["reasons"][-1] == f"and {1000 - REASONS_MAX} more"
