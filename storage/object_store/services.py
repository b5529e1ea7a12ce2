"""Services that keep buckets: what distinguishes S3, Google Cloud Storage and Azure Blob Storage from each other.

With ``bucket``, the only modules that import obstore.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from weft.config.units import BUCKETS, Address
from weft.storage.object_store.endpoint import Endpoint, EndpointNames, endpoint_of
from weft.storage.object_store.errors import StoreUnfit
from weft.storage.object_store.sentence import sentence

try:
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store
except ImportError as missing:  # pragma: no cover
    raise StoreUnfit('a bucket needs obstore, which is not installed: pip install "weft-fabric[hub]"') from missing

CONNECT_SECONDS_MAX = 5
REQUEST_SECONDS_MAX = 30
READ_RETRY_SECONDS_MAX = 30


class Overlap:
    """Headers by which half-sent PUTs to a signed URL are conditional."""

    create = ("If-None-Match", "*")
    swap = "If-Match"

    def __init__(self, *others: tuple[str, str]) -> None:
        self.others = others
        """Further headers that every PUT needs."""


@dataclass(frozen=True)
class Service:
    """One kind of buckets."""

    scheme: str
    names: EndpointNames
    client: Callable[..., Any]
    """Class of obstore for it."""
    defaults: tuple[tuple[str, str], ...] = ()
    """Options of obstore's class that callers may override."""
    version: str = "e_tag"
    """Part of obstore's facts that identifies the content of an object for a swap."""
    suffix_ranges: bool = True
    """True if a range may be counted from the end of an object; otherwise its length is asked for first."""
    overlap: Overlap | None = None
    """None where a signed URL does not permit further headers."""
    copies_later: bool = False
    """True if a copy may be answered before it has ended."""
    required: tuple[tuple[tuple[str, ...], str], ...] = ()
    """Options or variables of which one must be given, each with the advice."""

    @property
    def what(self) -> str:
        """Return the name of the service."""
        return BUCKETS[self.scheme]


S3 = Service(
    "s3",
    EndpointNames(
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "AWS_ALLOW_HTTP",
        "AWS_",
        "https://minio.example.com",
    ),
    S3Store,
    defaults=(("aws_copy_if_not_exists", "multipart"),),
    overlap=Overlap(),
)
GOOGLE = Service(
    "gs",
    EndpointNames(("GOOGLE_BASE_URL",), "GOOGLE_ALLOW_HTTP", "GOOGLE_", "https://storage.example.com"),
    GCSStore,
    # Its conditions name generations, and an etag may be of the content alone.
    version="version",
    # Its own headers must be signed, and a signed URL of obstore signs the host alone.
    overlap=None,
)
AZURE = Service(
    "az",
    EndpointNames(
        ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"), "AZURE_ALLOW_HTTP", "AZURE_", "https://blob.example.com"
    ),
    AzureStore,
    suffix_ranges=False,
    overlap=Overlap(("x-ms-blob-type", "BlockBlob")),
    copies_later=True,
    required=(
        (
            ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME", "ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"),
            "name the storage account in AZURE_STORAGE_ACCOUNT_NAME",
        ),
    ),
)
SERVICES = {service.scheme: service for service in (S3, GOOGLE, AZURE)}


@dataclass(frozen=True)
class BucketPlace:
    """A bucket, or a prefix in one, with the options that open it."""

    service: Service
    bucket: str
    prefix: str
    options: Mapping[str, str]
    endpoint: Endpoint

    @property
    def uri(self) -> str:
        """Return the URI, which deltalake takes, too."""
        return f"{self.service.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def is_remote(self) -> bool:
        """Return whether the service has a clock of its own: a server on this machine has this machine's."""
        return not Address(urlsplit(self.endpoint.url).hostname or "", 0).is_loopback

    @property
    def options_elsewhere(self) -> dict[str, str]:
        """Return the options for deltalake and pyarrow. For an endpoint without TLS, they allow plain HTTP."""
        options = dict(self.options)
        if self.endpoint.allows_http:
            # deltalake knows the client's own name of the option for all services.
            options[self.service.names.allow_http if self.service is S3 else "ALLOW_HTTP"] = "true"
        return options

    def open(self, retries: int) -> Any:
        """Return obstore's client, which repeats a request at most ``retries`` times.

        Raises:
            StoreUnfit: an option is not valid.
        """
        config = {name.lower(): value for name, value in self.options.items()}
        client: dict[str, Any] = {
            "timeout": timedelta(seconds=REQUEST_SECONDS_MAX),
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS_MAX),
        }
        # For obstore this is an option of the client, not of the bucket. It reads other missing options from the
        # environment by itself.
        for name in (self.service.names.allow_http, "ALLOW_HTTP"):
            config.pop(name.lower(), None)
        if self.endpoint.allows_http:
            client["allow_http"] = True
        config = {**dict(self.service.defaults), **config}
        retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=READ_RETRY_SECONDS_MAX)}
        try:
            return self.service.client(
                self.bucket, prefix=self.prefix or None, config=config, client_options=client, retry_config=retry
            )
        except (BaseError, ValueError) as error:
            raise StoreUnfit(f"{self.service.scheme}://{self.bucket}: {sentence(error)}") from error


def bucket_place(service: Service, bucket: str, prefix: str, options: Mapping[str, str]) -> BucketPlace:
    """Return the place of a store.

    Args:
        bucket: its name; a container's at Azure.
        prefix: the store's place in the bucket; '' for its root.
        options: object_store's names in capitals, as ``open_store`` describes.

    Raises:
        StoreUnfit: an option is missing or cannot be used.
    """
    given = {name.upper() for name in options} | set(os.environ)
    for names, advice in service.required:
        if not given & set(names):
            raise StoreUnfit(f"{service.scheme}://{bucket}: {advice}")
    return BucketPlace(service, bucket, prefix, dict(options), endpoint_of(service.names, options, os.environ))
