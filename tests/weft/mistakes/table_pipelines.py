"""Mistakes with pipelines, which are found before Spark starts; what Spark finds is in tests/spark_sinks/pipelines."""

from __future__ import annotations

from tests.weft.mistakes.mistake import Mistake

FILE = "warm.yaml"
SOURCE = "name: warm\nsource: {store: store, stream: telemetry}\n"
CONSOLE = "sink: {console: {}}\n"


def pipeline(did: str, text: str, message: str, command: str = f"spark check {FILE}") -> Mistake:
    """A pipeline that is wrong as it is written."""
    return Mistake(did, command, message, files={FILE: text}, in_process=True, needs="<spark>")


PIPELINES = [
    Mistake(
        "a pipeline that is not there",
        "spark run nowhere.yaml",
        "weft: nowhere.yaml: there is no such file",
        in_process=True,
        needs="<spark>",
    ),
    Mistake(
        "a shipped pipeline's name misspelt",
        "spark run machine-hour",
        "weft: there is no shipped pipeline 'machine-hour'. Did you mean machine-hours?; there is no file "
        "machine-hour either",
        in_process=True,
        needs="<spark>",
    ),
    Mistake(
        "a shipped pipeline that is none, to be changed",
        "spark new x",
        "weft: there is no shipped pipeline 'x'. Shipped are anomalies, clean, features, machine-hours, "
        "sessions, tables",
        in_process=True,
        needs="<spark>",
    ),
    pipeline(
        "a bracket of a pipeline that is not closed",
        "name: warm\nsource: {store: store, stream: telemetry\n" + CONSOLE,
        "weft: warm.yaml:2: a bracket that opens here is not closed, or a comma is missing after an entry",
    ),
    pipeline(
        "a setting of a source misspelt",
        "name: warm\nsource: {store: store, strem: telemetry}\n" + CONSOLE,
        "weft: warm.yaml:2: source.strem: is not a setting. Did you mean stream?",
    ),
    pipeline(
        "a step of a kind that is none",
        SOURCE + "steps: [{sqll: SELECT 1}]\n" + CONSOLE,
        "weft: warm.yaml:3: steps[0].sqll: is not a setting. Did you mean sql?",
    ),
    pipeline(
        "a pipeline without a sink",
        SOURCE,
        "weft: warm.yaml:1: sink: is missing. Place of the rows that come out of the last step.",
    ),
    pipeline(
        "a sink that is none",
        SOURCE + "sink: {dleta: table}\n",
        "weft: warm.yaml:3: sink.dleta: is not a sink. Did you mean delta?",
    ),
    pipeline(
        "two sinks",
        SOURCE + "sink: {console: {}, delta: t}\n",
        "weft: warm.yaml:3: sink: expected one sink, got console and delta",
    ),
    pipeline(
        "a table without a checkpoint",
        SOURCE + "sink: {delta: t}\n",
        "weft: warm.yaml: checkpoint: is missing, and a sink of kind delta needs one. Name a folder for it",
    ),
    pipeline(
        "a hub's address without a scheme",
        SOURCE + "sink: {stream: {hub: 'hub:8090', stream: a}}\ncheckpoint: c\n",
        'weft: warm.yaml:3: sink.stream.hub: expected a URL such as https://hub.example.com, got "hub:8090"',
    ),
    pipeline(
        "a store of a pipeline of a kind that is none",
        "name: warm\nsource: {store: 'ftp://x/y', stream: telemetry}\n" + CONSOLE,
        "weft: warm.yaml:2: source.store: expected a folder, s3://bucket/prefix, gs://bucket/prefix or "
        'az://container/prefix; got "ftp://x/y"',
    ),
    pipeline(
        "a trigger in words",
        SOURCE + CONSOLE + "trigger: soon\n",
        'weft: warm.yaml:4: trigger: expected a duration such as 10s or 1m, or available_now, got "soon"',
    ),
    pipeline(
        "a setting of a pipeline without a value",
        SOURCE + CONSOLE,
        'weft: --set: expected NAME=VALUE such as source.store=/data/hub, got "trigger"',
        f"spark run {FILE} --set trigger",
    ),
    pipeline(
        "a setting of Spark without a value",
        SOURCE + CONSOLE,
        "weft: --conf: expected NAME=VALUE such as spark.executor.memory=2g, got 'memory'",
        f"spark run {FILE} --conf memory",
    ),
]
