"""A hub with readings of machines in JSON, and pipelines over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_sinks.conftest import Hub


def reading(edge: str, seq: int) -> bytes:
    return b'{"temperature": %d.5, "state": "running"}' % (20 + seq % 10)


@pytest.fixture
def plant(tmp_path: Path) -> Hub:
    """Two rounds of readings in the table, and one behind it."""
    hub = Hub(str(tmp_path / "hub"))
    hub.payload = reading
    hub.write(2)
    hub.tier()
    hub.write(1)
    return hub


@pytest.fixture(scope="module")
def shared_plant(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    """The same for tests that only look."""
    hub = Hub(str(tmp_path_factory.mktemp("plant") / "hub"))
    hub.payload = reading
    hub.write(1)
    return hub
