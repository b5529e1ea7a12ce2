"""The calculator of sizes: it says what was measured where it was measured, and the page shows what it says."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from bench import sizing

PAGE = Path(__file__).parents[2] / "docs/sizing.md"
FLEET = sizing.Fleet(edges=100, rate=1000, payload_bytes=100, outage_s=86_400, streams=1, batch_s=1)


def sizes(fleet: sizing.Fleet) -> dict[str, str]:
    return {each.what: each.size for each in sizing.sizes(fleet, sizing.found()[0])}


def figure(text: str) -> float:
    return float(text.split(maxsplit=1)[0].replace(",", ""))


def test_at_a_measured_rate_it_says_the_worst_that_was_measured() -> None:
    cases = sizing.found()[0]["mqtt"]["cases"]
    measured = [each["weft"]["server_cpu"] for each in cases if each["name"].startswith("rate_1000_")]
    assert figure(sizes(FLEET)["edge: processor"]) == pytest.approx(max(measured), abs=0.005)


def test_twice_the_edges_need_twice_the_hub_and_the_same_edge() -> None:
    one, two = sizes(FLEET), sizes(replace(FLEET, edges=200))
    for what in ("hub: links and batches", "hub: tables"):
        assert figure(two[what]) == pytest.approx(2 * figure(one[what]), abs=0.02)
    assert {what: size for what, size in two.items() if what.startswith("edge")} == {
        what: size for what, size in one.items() if what.startswith("edge")
    }


def test_beyond_what_was_measured_the_cost_of_a_message_stays() -> None:
    most, beyond = (sizes(replace(FLEET, rate=rate))["edge: processor"] for rate in (10_000, 20_000))
    assert figure(beyond) == pytest.approx(2 * figure(most), abs=0.02)


def test_the_page_shows_what_it_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command, said = re.findall(r"```text\n\$ \./run bench (sizing .*)\n((?:.|\n)*?)```", PAGE.read_text())[0]
    monkeypatch.setattr("sys.argv", shlex.split(command))
    sizing.main()
    assert capsys.readouterr().out.split("\n\n")[0].strip() == said.strip()
