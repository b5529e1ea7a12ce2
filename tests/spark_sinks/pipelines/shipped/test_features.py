"""*features*: rows are a function of the log, and carry the versions of the features and of the model."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sinks.pipelines.catalog import PipelineError
from spark_sinks.pipelines.shipped import features as models
from spark_sinks.pipelines.shipped.features import FEATURES, MAGIC, Lineage, apply_model, pasts, read_model, write_model
from spark_sinks.pipelines.shipped.training import main
from spark_sinks.pipelines.steps import Context
from tests.spark_sinks.pipelines.shipped.conftest import Machines, Reading
from weft.config.load import parse
from weft.config.pipelines import Pipeline

SERIES = "examples/demo/data/machine_temperature_system_failure.csv.gz"


def readings(count: int) -> list[Reading]:
    chance = random.Random(3)
    return [(20.0 * at, f"m{at % 2}", 80 + chance.gauss(0, 3)) for at in range(count)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of a real machine's first week."""
    path = str(tmp_path_factory.mktemp("model") / "model.pickle")
    assert main([SERIES, path, "--until", "2013-12-09", "--version", "7"]) == 0
    return path


@pytest.mark.spark
@pytest.mark.slow
def test_any_cut_and_a_lost_checkpoint_give_the_same_rows(machines: Machines, trained: str) -> None:
    everything = readings(160)
    text = Path("spark_sinks/pipelines/shipped/features.yaml").read_text(encoding="utf-8")
    file = machines.folder / "features.yaml"
    file.write_text(
        text.replace("{history: 1h, warm_up: 6}", "{history: 10m, warm_up: 4}").replace(
            "model: model.pickle, version: null", f"model: {trained}, version: '7'"
        ),
        encoding="utf-8",
    )
    machines.write("e1", everything[:90])
    machines.run(str(file), "cut", records_max=50)
    shutil.rmtree(machines.checkpoint("cut"))
    machines.write("e1", everything[90:])
    machines.run(str(file), "cut", records_max=110)
    machines.run(str(file), "whole")
    whole = machines.rows("whole")
    assert machines.rows("cut") == whole
    assert len(whole) == len(everything)
    for at, row in enumerate(whole):
        seconds, machine, value = everything[row["_from"][0]["last"]]
        past = [each[2] for each in everything[: at + 1] if each[1] == machine and seconds - 600 <= each[0] <= seconds]
        assert (row["machine"], row["value"], row["records"]) == (machine, value, len(past))
        assert (row["features_version"], row["model_version"]) == ("1", "7")
        if len(past) < 4:
            assert (row["mean"], row["score"]) == (None, None)
        else:
            assert row["mean"] == pytest.approx(np.mean(past))
            assert row["highest"] == max(past)
            assert row["score"] < 0


@pytest.mark.spark
@pytest.mark.slow
def test_a_model_of_another_version_is_refused(
    spark: Any, trained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "name: s\nsource: {store: s, stream: t}\nsink: {console: {}}\n"
        "steps: [python: spark_sinks.pipelines.shipped.features:apply_model]\n"
    )
    context = Context(parse(text, "s.yaml", Pipeline).config)
    frame = spark.createDataFrame([], ", ".join(f"{name} double" for name in FEATURES))
    with pytest.raises(PipelineError, match="is version 7 of the model, and the pipeline asks for 8"):
        apply_model(frame, context, model=trained, version="8")
    with pytest.raises(PipelineError, match="cannot be read: No such file"):
        apply_model(frame, context, model=str(tmp_path / "none"))
    with pytest.raises(PipelineError, match="needs the column value"):
        apply_model(frame.drop("value"), context, model=trained)
    other = tmp_path / "other.pickle"
    for content, said in (
        (b"\x80\x05pickled", "is not a model file"),
        (MAGIC + b"{}\nbody", "is not a model file"),
        (Path(trained).read_bytes()[:-1], "is damaged"),
    ):
        other.write_bytes(content)
        with pytest.raises(ValueError, match=said):
            read_model(str(other))
    monkeypatch.setattr(models, "FEATURES_VERSION", "2")
    with pytest.raises(PipelineError, match="trained with version 1 of the features, and these are version 2"):
        apply_model(frame, context, model=trained)
    write_model(str(other), object(), "1")
    assert read_model(str(other))[0].features_version == "2"


@pytest.mark.spark
@pytest.mark.slow
def test_training_says_what_is_wrong_with_a_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "series.csv"
    for content, said in (
        ("time,value\n1,2\n", "has no column timestamp; it has time, value"),
        ("timestamp,value\n2026-01-01,2\n", "0 rows are too few to train a model"),
    ):
        file.write_text(content)
        assert main([str(file), str(tmp_path / "model")]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


# --- The lineage of rows over a past, by arrays, is that of a loop over all parts


PARTS = st.builds(
    lambda edge, log, first, more, count: {
        "edge": edge,
        "log": log,
        "first": first,
        "last": first + more,
        "count": count,
    },
    st.sampled_from(["e1", "e2"]),
    st.sampled_from(["a", "b"]),
    st.integers(0, 2**62),
    st.integers(0, 9),
    st.integers(1, 9),
)
SOURCES = st.lists(st.one_of(st.none(), st.lists(PARTS, max_size=3)), min_size=1, max_size=30)


def by_a_loop(sources: list[list[dict[str, Any]] | None], places: list[int]) -> list[dict[str, Any]]:
    lanes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for place in places:
        for part in sources[place] or ():
            lanes.setdefault((part["edge"], part["log"]), []).append(part)
    return [
        {
            "edge": edge,
            "log": log,
            "first": min(each["first"] for each in parts),
            "last": max(each["last"] for each in parts),
            "count": sum(each["count"] for each in parts),
        }
        for (edge, log), parts in sorted(lanes.items())
    ]


@given(SOURCES, st.data())
def test_the_lineage_of_any_rows_is_that_of_a_loop(sources: list[Any], data: st.DataObject) -> None:
    lineage = Lineage(sources)
    chosen = data.draw(st.sets(st.integers(0, len(sources) - 1), min_size=1))
    low, high = min(chosen), max(chosen)
    for places in (sorted(chosen), list(range(low, high + 1)), []):
        assert lineage.of(np.array(places, np.intp)) == by_a_loop(sources, places)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 20))
def test_the_lineage_of_each_past(times: list[int], span: int) -> None:
    sources: list[list[dict[str, Any]] | None] = [
        [{"edge": "e", "log": "a", "first": at, "last": at, "count": 1}] for at in range(len(times))
    ]
    lineage = Lineage(sources)
    for at, earlier in pasts(np.array(times, np.int64), np.ones(len(times), bool), span):
        used = np.append(earlier, at)
        assert lineage.of(used) == by_a_loop(sources, [*map(int, used)])
