"""Listeners work on the loop that nodes run on, and on asyncio's own where there is no uvloop."""

from tests.network.conftest import _sweep_soon, pytest_asyncio_loop_factories

__all__ = ["_sweep_soon", "pytest_asyncio_loop_factories"]
