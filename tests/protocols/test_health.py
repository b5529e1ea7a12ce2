"""Answers to probes say the state and nothing else, in a bounded number of words."""

from __future__ import annotations

import json

from weft.protocols.health import REASONS_MAX, health_answer

JSON = {"Accept": "application/json"}
UNCACHED = {"Cache-Control": "no-store"}


def test_text_for_people_and_probes() -> None:
    assert health_answer("ready", [], {"Accept": "*/*"}) == {
        "status": 200,
        "content_type": "text/plain",
        "body": b"ready\n",
        "headers": UNCACHED,
    }
    assert health_answer("ready", ["the log is full", "x"], {}) == {
        "status": 503,
        "content_type": "text/plain",
        "body": b"not ready: the log is full; x\n",
        "headers": UNCACHED,
    }


def test_json_for_programs_that_ask_for_it() -> None:
    answer = health_answer("healthy", ["it failed"], {"Accept": "application/json, text/plain"})
    assert (answer["status"], answer["content_type"], answer["headers"]) == (503, "application/json", UNCACHED)
    assert json.loads(answer["body"]) == {"healthy": False, "reasons": ["it failed"]}
    assert json.loads(health_answer("healthy", [], JSON)["body"]) == {"healthy": True, "reasons": []}


def test_a_thousand_reasons_are_a_few_and_a_number() -> None:
    body = json.loads(health_answer("ready", [f"shard {n}" for n in range(1000)], JSON)["body"])
    assert len(body["reasons"]) == REASONS_MAX + 1
    assert body["reasons"][-1] == f"and {1000 - REASONS_MAX} more"
