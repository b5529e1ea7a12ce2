"""The archive that executors get holds all that they import."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from spark_sinks.pipelines.catalog import PipelineError
from spark_sinks.pipelines.job import PACKAGES, code_of, write_archive
from weft.config.load import parse
from weft.config.pipelines import Pipeline

TEXT = "name: p\nsource: {store: s, stream: telemetry}\nsteps: [python: 'STEP']\nsink: {console: {}}\n"


@pytest.mark.slow
def test_a_python_without_weft_imports_it_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "plant_steps.py").write_text("def warm(frame):\n    return frame\n")
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    pipeline = parse(TEXT.replace("STEP", "plant_steps:warm"), "p.yaml", Pipeline).config
    path = tmp_path / "code.zip"
    write_archive(str(path), code_of(pipeline))
    libraries = sysconfig.get_paths()["purelib"]
    # Without site no editable install is found: only what is in the archive, and compiled libraries.
    text = (
        f"import sys; sys.path += [{str(path)!r}, {libraries!r}]\n"
        "import plant_steps, pyspark_weft, spark_sinks.pipelines.job, spark_sinks.pipelines.shipped.clean\n"
        "from spark_sinks.pipelines.catalog import located\n"
        "assert pyspark_weft.DefaultSource.name() == 'weft'\n"
        "assert 'code.zip' in spark_sinks.__file__ and 'code.zip' in sys.modules['weft.config.load'].__file__\n"
        "print(located('clean').config.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", text], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stderr
    assert path.stat().st_size < 4 << 20


def test_libraries_are_not_sent_and_compiled_modules_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = parse(TEXT.replace("STEP", "pandas:concat"), "p.yaml", Pipeline).config
    assert [*code_of(pipeline)] == [*PACKAGES]
    (tmp_path / "fast_steps.so").write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    pipeline = parse(TEXT.replace("STEP", "fast_steps:warm"), "p.yaml", Pipeline).config
    with pytest.raises(PipelineError, match="module fast_steps is compiled and cannot be sent to executors"):
        [*code_of(pipeline)]
