"""Opening of a store by its URI."""

from __future__ import annotations

from urllib.parse import urlsplit

from weft.config.fields import ONE_SLASH
from weft.config.units import BUCKETS, WRITTEN
from weft.storage.object_store.directory import DirectoryStore
from weft.storage.object_store.memory import MemoryStore
from weft.storage.object_store.placed import PlacedStore
from weft.storage.object_store.protocol import ObjectStore

_memory_stores: dict[str, MemoryStore] = {}


def open_store(uri: str, options: dict[str, str] | None = None) -> ObjectStore:
    """Open a store, without reading or writing (``probe`` does that). Tenants that are set apart have their objects
    below prefixes of their own in it (``placed``).

    Args:
        uri: a path, ``file:///path``, ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, or
            ``memory://name`` (one store per name and process; a new one each time without a name).
        options: for a bucket, with the names of deltalake and object_store, as docs/reference/stores.md lists them:
            ``AWS_ENDPOINT_URL``, ``GOOGLE_SERVICE_ACCOUNT``, ``AZURE_STORAGE_ACCOUNT_NAME``. What is missing comes from
            the environment and the machine's role.

    Raises:
        ValueError: no such kind of store.
        StoreUnfit: the library of this kind is not installed, or an option is not valid.
    """
    if "://" not in uri:
        if ONE_SLASH.match(uri):
            raise ValueError(f"{uri!r} is no store: expected {WRITTEN}; or ./NAME for a folder with a colon")
        return PlacedStore(DirectoryStore(uri))
    parts = urlsplit(uri)
    if "@" in parts.netloc:
        # The URI is not in the message, because it has a password.
        raise ValueError("a store's URI has no user name or password: a key comes from the environment or options")
    if parts.query or parts.fragment:
        raise ValueError("a store's URI has no options behind `?` or `#`: they come from the environment")
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return PlacedStore(DirectoryStore(parts.path))
    if parts.scheme == "memory":
        return PlacedStore(_memory_stores.setdefault(parts.netloc, MemoryStore()) if parts.netloc else MemoryStore())
    if parts.scheme in BUCKETS and parts.netloc:
        # The first one says what is missing where obstore is not installed.
        from weft.storage.object_store.services import SERVICES, bucket_place

        place = bucket_place(SERVICES[parts.scheme], parts.netloc, parts.path.strip("/"), options or {})
        from weft.storage.object_store.bucket import BucketStore

        return PlacedStore(BucketStore(place))
    raise ValueError(f"{uri!r} is no store: expected a path, file:///path, {WRITTEN}, or memory://name")
