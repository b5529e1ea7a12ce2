"""The page on models: its training, its code and its figures, on the real series."""

from __future__ import annotations

import csv
import gzip
import runpy
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.functions.python.conftest import Subject

# Looked for and not imported: in this process its telemetry would be on.
pytestmark = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime has no wheels for some systems")

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/how-to/score-with-a-model.md"
FOLDER = PAGE.with_suffix("")
SERIES = ROOT / "examples/demo/data/machine_temperature_system_failure.csv.gz"

Make = Callable[..., Subject]


def series() -> list[dict[str, Any]]:
    with gzip.open(SERIES, "rt") as file:
        return [{"timestamp": each["timestamp"], "value": float(each["value"])} for each in csv.DictReader(file)]


@pytest.fixture
def scoring(subject: Make, tmp_path: Path) -> Subject:
    runpy.run_path(str(FOLDER / "train.py"))["main"](str(SERIES), str(tmp_path / "machine_temperature.onnx"))
    return subject(
        (FOLDER / "score.py").read_text(), batch=True, files=(str(tmp_path / "machine_temperature.onnx"),), timeout_s=30
    )


def peaks(scored: list[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in scored:
        day = each["timestamp"][:10]
        found[day] = max(found.get(day, 0.0), each["score"] or 0.0)
    return {day: score for day, score in found.items() if score > 11}


async def test_the_shutdown_and_the_failure_stand_out(scoring: Subject) -> None:
    scored = await scoring.feed(*series())
    assert len(scored) == 22_695
    assert peaks(scored) == {"2013-12-16": 24.2, "2014-02-03": 16.9, "2014-02-09": 18.4}
    assert [each["score"] for each in scored[:12]] == [None] * 11 + [scored[11]["score"]]
    assert scoring.out.rejected() == []


async def test_the_runtime_of_models_has_no_telemetry(
    scoring: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its telemetry on, onnxruntime leaves the file of a session in the temporary folder."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    await scoring.feed(*series()[:20])
    assert list((tmp_path / "temporary").iterdir()) == []


async def test_scores_do_not_depend_on_batches_or_restarts(scoring: Subject) -> None:
    rows = series()[3800:4100]  # around the shutdown
    whole = await scoring.feed(*rows)
    await scoring.restart()
    assert scoring.function.state is not None
    scoring.function.state.delete(b"plant/1")
    parts = []
    for begin, end in ((0, 1), (1, 8), (8, 100), (100, 300)):
        parts += await scoring.feed(*rows[begin:end])
        await scoring.restart()
    assert parts == whole


async def test_a_model_that_does_not_load_is_not_used(scoring: Subject) -> None:
    rows = series()
    await scoring.feed(*rows[:20])
    first = scoring.function.version()
    model = scoring.file.with_name("machine_temperature.onnx")
    shutil.copy(model, model.with_suffix(".bak"))
    model.write_bytes(b"no model")
    assert (await scoring.feed(rows[20]))[0]["score"] is not None
    assert scoring.function.version() == first
    assert "score.py, line" in scoring.function.trouble()
    model.with_suffix(".bak").rename(model)
    await scoring.feed(rows[21])
    assert scoring.function.trouble() == ""


def test_the_page_shows_the_code_that_runs() -> None:
    assert f"```python\n{(FOLDER / 'score.py').read_text()}```" in PAGE.read_text()
