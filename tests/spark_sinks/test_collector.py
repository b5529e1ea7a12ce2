"""The collector of a local session: Java ends at once when two are chosen, so what a person chose must be seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_sinks.runtime.session import OPTIONS, PARALLEL, collector_conf


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
