"""What the counted instructions are compared with, and when they are red. The paths themselves run in CI's count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.count import __main__ as count


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(count, "FIGURES", tmp_path / "figures.json")
    return tmp_path / "figures.json"


def test_a_path_is_red_from_a_tenth_more_on() -> None:
    found = {"slower": ("row", 1151.0), "the same": ("row", 1009.0), "faster": ("row", 500.0), "other": ("row", 7.0)}
    reported = dict(zip(found, count.lines(found, {"slower": 1000, "the same": 1000, "faster": 1000}), strict=True))
    assert {name for name, (_, is_red) in reported.items() if is_red} == {"slower"}
    assert reported["slower"][0].endswith("1,151 instructions a row, +15.1%")
    assert reported["other"][0].endswith("new")


def test_figures_are_taken_with_a_reason_and_leave_those_of_other_paths(figures: Path) -> None:
    count.take({"a": ("row", 10.4), "b": ("row", 20.0)}, "first")
    count.take({"b": ("row", 30.0)}, "rows are sorted now")
    assert count.known() == {"a": 10, "b": 30}
    assert [each["reason"] for each in json.loads(figures.read_text())["reasons"]] == ["first", "rows are sorted now"]


def test_figures_of_another_python_are_compared_with_nothing(figures: Path) -> None:
    count.take({"a": ("row", 10.0)}, "first")
    kept = json.loads(figures.read_text())
    figures.write_text(json.dumps(kept | {"machine": kept["machine"] | {"python": "3.9.1"}}))
    assert count.known() is None


def test_a_red_path_is_counted_again_and_stays_red_only_if_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted slowdown of 15 % is found by each count; a timer of the machine only by one."""
    counted = iter([{"slower": 1155.0, "disturbed": 1030.0}, {"slower": 1149.0}])
    asked = []

    def count_some(names: list[str]) -> dict[str, tuple[str, float]]:
        asked.append(names)
        return {name: ("row", figure) for name, figure in next(counted).items()}

    monkeypatch.setattr(count, "count", count_some)
    before = {"slower": 1000.0, "disturbed": 1000.0, "the same": 1000.0}
    first = {"slower": ("row", 1151.0), "disturbed": ("row", 1400.0), "the same": ("row", 1001.0)}
    found = count.count_again(first, before)
    assert asked == [["slower", "disturbed"], ["slower"]]
    assert found == {"slower": ("row", 1149.0), "disturbed": ("row", 1030.0), "the same": ("row", 1001.0)}
