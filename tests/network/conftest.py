"""Listeners work on the loop that nodes run on, and on asyncio's own where there is no uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _sweep_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.network.admission.SWEEP_INTERVAL_S", 0.05)
    monkeypatch.setattr("weft.network.accepting.ACCEPT_PAUSE_S", 0.1)
