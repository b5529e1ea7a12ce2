from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.object_store.buckets import (
    Endpoint,
    az,  # noqa: F401
    gs,  # noqa: F401
    s3,  # noqa: F401
)
from weft.storage.object_store import ObjectStore, open_store

BUCKETS = {
    "s3": pytest.param("s3", marks=pytest.mark.s3),
    "gs": pytest.param("gs", marks=pytest.mark.slow),
    "az": pytest.param("az", marks=pytest.mark.slow),
}
"""Fixtures of servers that keep buckets."""


@pytest.fixture(params=[*BUCKETS.values()])
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    found: Endpoint = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["memory", "directory", *BUCKETS.values()])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return open_store("memory://")
    if request.param == "directory":
        return open_store(str(tmp_path / "store"))
    endpoint: Endpoint = request.getfixturevalue(request.param)
    return open_store(f"{endpoint.new_bucket()}/root", endpoint.options)
