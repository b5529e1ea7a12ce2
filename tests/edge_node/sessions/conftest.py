"""Tidying up after the nodes of these tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def _collected() -> Iterator[None]:
    """Have the folders of nodes removed that are garbage and not collected yet: they go with their ``Node``."""
    yield
    gc.collect()
