from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.object_store.buckets import S3Endpoint, s3_endpoint
from tests.storage.object_store.emulators import Endpoint, bucket_server
from weft.storage.object_store import ObjectStore, open_store


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Endpoint]:
    with s3_endpoint() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def gs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with bucket_server("gs", tmp_path_factory.mktemp("google")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def az(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with bucket_server("az", tmp_path_factory.mktemp("azure")) as endpoint:
        yield endpoint


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
    endpoint: Endpoint = request.getfixturevalue("s3")
    return open_store(f"{endpoint.new_bucket()}/root", endpoint.options)
