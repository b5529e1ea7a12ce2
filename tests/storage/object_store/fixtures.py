"""Fixtures of servers that keep buckets, for the conftest files of the folders that use them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.storage.object_store.buckets import S3Endpoint, s3_endpoint
from tests.storage.object_store.emulators import Endpoint, bucket_server


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
