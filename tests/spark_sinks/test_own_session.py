"""A session that the user made, in a Python whose virtual environment is not activated: the PATH has another one."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest
from PIL import Image

from docs.tools.prose import Text, findings
from docs.tutorial.notebook import PATH, execute, pictures, read_notebook, texts
from spark_sinks.runtime.session import cache_directory, find_java_home
from tests.end_to_end.page_reader import java_options
from tests.spark_sinks.conftest import STREAM, Hub
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import Lane
from weft.protocols.shard.completeness import completeness
from weft.protocols.shard.lane_state import LaneState

ROOT = Path(__file__).parents[2]
RUN_SECONDS_MAX = 200
OWN_SESSION = """
from pyspark.sql import SparkSession
from spark_sinks import read, register
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
def source(reader):
    return reader.format("weft").option("store", {store!r}).option("stream", {stream!r}).load()
"""
EVERY_WAY = """
print("read", read(spark, {stream!r}, store={store!r}).count())
print("source", source(spark.read).count())
query = source(spark.readStream).writeStream.format("memory").queryName("rows").trigger(availableNow=True).start()
query.awaitTermination()
print("stream", spark.table("rows").count())
print("own function", spark.range(1).rdd.map(lambda _: __import__("pyarrow").__name__).collect())
"""
REGISTER_FIRST = "register(spark)\n" + "\n".join(EVERY_WAY.split("\n")[2:])
WRONG_PYTHON = """
def reported(attempt):
    try:
        attempt()
    except Exception as error:
        print("reported", error)
reported(lambda: source(spark.read))
reported(lambda: read(spark, {stream!r}, store={store!r}))
"""


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `python3` of a new environment: it has nothing but the standard library."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder, symlinks=True, with_pip=False)
    return folder / "bin" / "python3"


def run(script: str, hub: Hub, other_python: Path, tmp_path: Path, **variables: str) -> str:
    """Run a script with nothing in the environment but a PATH that begins with the other Python."""
    file = tmp_path / "script.py"
    file.write_text((OWN_SESSION + script).format(store=hub.root, stream=STREAM))
    home = find_java_home(os.environ, cache_directory())
    java = {} if home is None else {"JAVA_HOME": home}
    path = os.pathsep.join([str(other_python.parent), os.environ["PATH"]])
    own = {"PATH": path, "HOME": str(tmp_path), "TMPDIR": tempfile.gettempdir(), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = own | java_options() | java | variables
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.search(turns=4)
@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize("script", [EVERY_WAY, REGISTER_FIRST], ids=["read", "register"])
def test_workers_run_where_the_script_runs(hub: Hub, other_python: Path, tmp_path: Path, script: str) -> None:
    hub.write(2)
    said = run(script, hub, other_python, tmp_path, PYTHONPATH=str(ROOT))
    expected = [f"{way} 80" for way in ("read", "source", "stream")][script is REGISTER_FIRST :]
    assert said.splitlines() == [*expected, "own function ['pyarrow']"]


@pytest.mark.search(turns=4)
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_job_may_have_modules_of_its_own_with_the_names_of_our_folders(
    hub: Hub, other_python: Path, tmp_path: Path
) -> None:
    for name in ("cloud_hub", "config", "edge_node", "functions", "protocols", "replication", "storage"):
        (tmp_path / f"{name}.py").write_text(f"MINE = {name!r}\n")
    hub.write(1)
    script = "import config, storage, protocols\nprint(config.MINE, storage.MINE, protocols.MINE)\n" + EVERY_WAY
    said = run(script, hub, other_python, tmp_path)
    assert said.splitlines()[:4] == ["config storage protocols", "read 40", "source 40", "stream 40"]


@pytest.mark.search(turns=4)
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_python_that_lacks_libraries_is_named_with_the_setting(hub: Hub, other_python: Path, tmp_path: Path) -> None:
    hub.write(1)
    chosen = {"PYSPARK_PYTHON": str(other_python), "PYTHONPATH": str(ROOT)}
    said = run(WRONG_PYTHON, hub, other_python, tmp_path, **chosen)
    source, helper = said.split("reported ")[1:]
    assert f"Spark's Python workers run in {other_python}, which lacks msgspec. Before the Spark session" in source
    assert "set PYSPARK_PYTHON to a Python that has weft-fabric with its extra 'spark'" in source
    assert helper.startswith(f"PYSPARK_PYTHON is {other_python}, which lacks cbor2, crc32c, deltalake, msgspec,")
    assert helper.endswith(
        f"set PYSPARK_PYTHON to {sys.executable}, or leave it out, before the Spark session starts\n"
    )


# --- The tutorial's notebook runs from its first cell to its last, and says what it says in the repository


def colours(image: Image.Image) -> int:
    small = image.convert("RGB").resize((90, 46), Image.Resampling.NEAREST)
    return len(small.getcolors(90 * 46) or [])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_the_notebook_does_what_it_shows() -> None:
    shown = read_notebook()
    done = execute(copy.deepcopy(shown))
    for number, (here, there) in enumerate(zip(texts(done), texts(shown), strict=True)):
        assert here == there, f"cell {number}: run `python -m docs.tutorial.notebook` and look at what has changed"
    # Lines, shades and text: no picture is empty.
    assert [colours(image) > 3 for image in pictures(done)] == [True] * len(pictures(shown))


def test_the_notebook_is_kept_with_its_outputs() -> None:
    """It is read where it cannot be run, too."""
    shown = read_notebook()
    assert len(pictures(shown)) == 5
    said = "\n".join(texts(shown))
    assert "complete until 2020-07-13T08:00:00+00:00" in said
    assert "complete until 2020-07-14T00:00:00+00:00" in said
    assert "369 budget" in said
    assert "equal: True True" in said
    assert "good: every record is in the log once" in said


def test_the_notebook_shows_why_an_edge_is_silent_in_the_words_of_today() -> None:
    now = 10**18
    state = LaneState()
    state.add_mark(Mark(now - int(4.5 * 3600 * 10**9), 0))
    [reported] = completeness({Lane("default", "greenhouse", 2, STREAM): state}, (), now).held_back_by
    assert f": {reported.why}; {reported.advice}\n" in "\n".join(texts(read_notebook()))


def test_the_text_of_the_notebook_reads_well_and_leads_somewhere() -> None:
    text = "\n".join(cell.source for cell in read_notebook().cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links
    assert [link for link in links if not (PATH.parent / link).exists()] == []
    assert list(findings(Text(1, "comment", text))) == []
