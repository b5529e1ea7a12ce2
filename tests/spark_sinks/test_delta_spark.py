"""Our tables through delta-spark's reader, as docs/how-to/open-the-table.md says it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_sinks.runtime.java import find_java_home
from spark_sinks.runtime.session import cache_directory
from tests.end_to_end.page_blocks import blocks
from tests.end_to_end.page_reader import java_options
from tests.spark_sinks.conftest import Hub

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(590)]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "open-the-table.md"
RUN_SECONDS_MAX = 500


@pytest.fixture
def downloads() -> Iterator[Path]:
    """A folder with delta-spark, of the version that the page names, and room for 87 MB of jars; gone afterwards."""
    version = re.findall(r"pip install delta-spark==(\S+)`", PAGE.read_text())[0]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        wanted = [f"delta-spark=={version}", "importlib_metadata<=8.7.1", "zipp"]
        done = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"pip cannot download delta-spark: {done.stderr[-200:]}")
        yield Path(folder)


def test_the_delta_reader_opens_our_table(
    hub: Hub, tmp_path: Path, downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:  # files of earlier releases have no numbers of columns
        earlier.setattr("weft.storage.table_maker.parquet_file.with_field_ids", lambda schema: schema)
        hub.write(1)
        rows = hub.tier()
    hub.write(1)
    rows += hub.tier()
    (tmp_path / "store").symlink_to(hub.root)
    script = next(block.text for block in blocks(PAGE) if 'format("delta")' in block.text)
    assert "table(spark" in script
    file = tmp_path / "script.py"
    file.write_text(f"{script}\nprint('rows', table(spark, 'telemetry', store='store').count())\n")
    home = find_java_home(os.environ, cache_directory())
    own = {
        "PYTHONPATH": f"{downloads}{os.pathsep}{ROOT}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.jars.ivy={downloads / 'ivy'} --conf spark.ui.enabled=false pyspark-shell",
    }
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env=os.environ | own | java_options() | ({} if home is None else {"JAVA_HOME": home}),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    if done.returncode and ("UNRESOLVED DEPENDENCIES" in done.stderr or "FAILED DOWNLOADS" in done.stderr):
        pytest.skip("delta-spark's jars cannot be had from Maven Central here")
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"\|\s*m0\|\s*40\|", done.stdout)
    assert f"rows {rows}" in done.stdout
