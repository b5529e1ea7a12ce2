"""What a test reads of the log has pytest's format, also in a process in which PySpark has logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.logger import PySparkLogger


@pytest.fixture
def of_spark() -> Iterator[logging.Logger]:
    logger = PySparkLogger.getLogger("tests.of_spark")
    logger.propagate = False  # pytest adds its handlers to it before the test is called
    yield logger
    logger.propagate = True


def test_loggers_of_spark_leave_others_their_format(of_spark: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    of_spark.warning("first")
    logging.getLogger("tests.others").warning("second")
    assert [line.split()[0] for line in caplog.text.splitlines()] == ["WARNING", "WARNING"]
