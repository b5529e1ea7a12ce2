from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers import MOSQUITTO, RABBITMQ, Mosquitto, RabbitMq, mosquitto


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    if MOSQUITTO is None:
        pytest.skip("Mosquitto is not installed: apt install mosquitto")
    with mosquitto(tmp_path / "mosquitto") as found:
        yield found


@pytest.fixture(scope="session")
def rabbit() -> Iterator[RabbitMq]:
    if not os.path.exists(RABBITMQ):
        pytest.skip("RabbitMQ is not installed: apt install rabbitmq-server")
    found = RabbitMq()
    yield found
    found.close()
