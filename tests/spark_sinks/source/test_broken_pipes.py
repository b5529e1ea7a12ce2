"""Traces of broken pipes: kept from the terminal in Spark's processes, and printed everywhere else."""

from __future__ import annotations

import importlib.machinery
import subprocess
import sys
import traceback

import pytest

from spark_sinks.source.workers import keep_broken_pipes_quiet


@pytest.mark.parametrize(
    ("main", "error", "is_printed"),
    [
        ("pyspark.daemon", BrokenPipeError(32, "Broken pipe"), False),
        ("pyspark.daemon", ValueError("no number"), True),
        ("pyspark.sql.streaming.python_streaming_source_runner", BrokenPipeError(32, "Broken pipe"), True),
        ("my_script", BrokenPipeError(32, "Broken pipe"), True),
    ],
)
def test_only_broken_pipes_of_workers_are_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], main: str, error: Exception, is_printed: bool
) -> None:
    monkeypatch.setattr(traceback, "print_exc", traceback.print_exc)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.machinery.ModuleSpec(main, None))
    keep_broken_pipes_quiet()
    keep_broken_pipes_quiet()
    try:
        raise error
    except Exception:
        traceback.print_exc()
    assert bool(capsys.readouterr().err) == is_printed


def test_a_process_that_only_plans_a_read_is_quiet_too() -> None:
    plan = (
        "import sys, traceback, importlib.machinery as m\n"
        "sys.modules['__main__'].__spec__ = m.ModuleSpec('pyspark.daemon', None)\n"
        "import spark_sinks.source.data_source\n"
        "try: raise BrokenPipeError\n"
        "except BrokenPipeError: traceback.print_exc()\n"
    )
    assert subprocess.run([sys.executable, "-c", plan], capture_output=True, check=True).stderr == b""


@pytest.mark.parametrize(
    ("main", "error", "is_printed"),
    [
        ("pyspark.sql.streaming.python_streaming_source_runner", BrokenPipeError(32, "Broken pipe"), False),
        ("pyspark.sql.streaming.python_streaming_source_runner", ValueError("no number"), True),
        ("my_script", BrokenPipeError(32, "Broken pipe"), True),
    ],
)
def test_a_planner_ends_at_a_broken_pipe_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], main: str, error: Exception, is_printed: bool
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.machinery.ModuleSpec(main, None))
    keep_broken_pipes_quiet()
    keep_broken_pipes_quiet()
    sys.excepthook(type(error), error, None)
    assert bool(capsys.readouterr().err) == is_printed
