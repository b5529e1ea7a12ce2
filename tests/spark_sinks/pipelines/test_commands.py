"""``weft spark new``, ``check`` and ``run``, as a person uses them on the shipped pipelines.

The session is that of all tests here: ``test_run.py`` has one of the command's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from spark_sinks.pipelines.catalog import names
from spark_sinks.pipelines.shipped.features import FEATURES, write_model
from tests.spark_sinks.conftest import EDGES, Hub
from tests.spark_sinks.source.test_hub import Serving
from tests.support.tokens import create_token
from weft.cli import cli
from weft.client import Client
from weft.commands import spark as check
from weft.hub_api.rights import Scope
from weft.output import Refused

pytestmark = pytest.mark.spark
Weft = Callable[..., Result]


@pytest.fixture
def weft(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Weft:
    """The command line, in an empty folder."""

    @contextmanager
    def shared(*_: Any) -> Iterator[SparkSession]:
        yield spark

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["spark", *arguments], catch_exceptions=False, standalone_mode=False)

    monkeypatch.setattr(check, "spark_session", shared)
    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.parametrize("name", names())
def test_a_copy_of_a_shipped_pipeline_is_good(name: str, weft: Weft, shared_plant: Hub) -> None:
    printed = weft("new", name)
    assert printed.exit_code == 0, printed.stderr
    Path("mine.yaml").write_text(printed.stdout)
    from sklearn.ensemble import IsolationForest  # takes a second, which every worker's collection would

    write_model("model.pickle", IsolationForest(n_estimators=2).fit([[0.0] * len(FEATURES)]), "1")
    elsewhere = ("--set", "sink={console: {}}") if name != "tables" else ()
    done = weft("check", "mine.yaml", "--set", f"source.store={shared_plant.root}", *elsewhere)
    assert (done.return_value, done.stderr) == (0, ""), done.stderr
    assert done.stdout.splitlines()[-1].startswith("mine.yaml is good: ")
    if name != "tables":
        assert "_from array<struct<edge:string" in done.stdout.splitlines()[-2], "all that make rows carry lineage"


def test_a_mistake_has_its_line_for_people_and_for_programs(weft: Weft, shared_plant: Hub) -> None:
    text = weft("new", "sessions").stdout.replace("FROM input", "FROM inputs")
    Path("mine.yaml").write_text(text)
    given = ("check", "mine.yaml", "--set", f"source.store={shared_plant.root}")
    line = next(n for n, content in enumerate(text.splitlines(), 1) if content.lstrip().startswith("- sql:"))
    said = weft(*given)
    assert said.return_value == 2
    assert said.stderr.startswith(f"weft: mine.yaml:{line}: steps[0].sql: there is no table inputs"), said.stderr
    answer = json.loads(weft(*given, "--json").stdout)
    assert not answer["good"]
    assert [(error["setting"], error["line"]) for error in answer["errors"]] == [("steps[0].sql", line)]


def test_a_name_that_is_nearly_right(weft: Weft) -> None:
    assert weft("new").stdout.split() == names()
    with pytest.raises(Refused, match=r"no shipped pipeline 'machine-hour'\. Did you mean machine-hours\?"):
        weft("new", "machine-hour")


def test_a_pipeline_that_runs_is_seen_at_a_hub_with_its_batch_and_its_end(weft: Weft, shared_plant: Hub) -> None:
    token, tokens = Path("job.token"), Path("tokens")
    token.write_text(create_token(tokens, "job", Scope.GRANTED, "default", grants=("report:clean", "read")))
    with Serving(shared_plant.root, tokens=str(tokens)) as hub:
        report = ("--report", hub.url, "--report-token-file", str(token))
        done = weft("run", "clean", "--set", f"source.store={shared_plant.root}", "--once", "--no-check", *report)
        assert (done.return_value, done.stderr.count("micro-batch 0: 40 records")) == (0, 1), done.stderr
        client = Client(hub.url, token_file=str(token))
        (reported,) = client.pipelines().pipelines
    assert (reported.pipeline, reported.state, reported.batch, reported.lag) == ("clean", "ended", 0, 0)
    assert reported.records == shared_plant.rounds * 10 * len(EDGES)
