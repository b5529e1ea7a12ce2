from __future__ import annotations

import pytest

from tests.replication.model import ModelLog


@pytest.fixture
def log() -> ModelLog:
    log = ModelLog({1: "telemetry", 2: "alarms"})
    log.append(1, 10)
    return log
