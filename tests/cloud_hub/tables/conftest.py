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


@pytest.fixture
def directory(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture(
    params=[
        "directory",
        pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow]),
        pytest.param("gs", marks=pytest.mark.slow),
        pytest.param("az", marks=pytest.mark.slow),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Where tables can be: deltalake has no way into our memory."""
    if request.param == "directory":
        return open_store(str(tmp_path / "store"))
    endpoint: Endpoint = request.getfixturevalue(request.param)
    return open_store(f"{endpoint.new_bucket()}/root", endpoint.options)
