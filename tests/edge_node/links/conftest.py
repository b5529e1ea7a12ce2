"""Hubs that know streams by the numbers that a test's log gives them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.replication.loopback import Hub
from weft.storage.segment_log import SegmentLog


@pytest.fixture(autouse=True)
def _numbers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    declare = SegmentLog.stream

    def spy(self: SegmentLog, name: str) -> int:
        number = Hub.numbers[name] = declare(self, name)
        return number

    monkeypatch.setattr(SegmentLog, "stream", spy)
    yield
    Hub.numbers.clear()
