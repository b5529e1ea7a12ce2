"""Opening of a store by its URI."""

from __future__ import annotations

from urllib.parse import urlsplit

from weft.config.fields import ONE_SLASH
from weft.storage.object_store.directory import DirectoryStore
from weft.storage.object_store.memory import MemoryStore
from weft.storage.object_store.protocol import ObjectStore

_memory_stores: dict[str, MemoryStore] = {}


def open_store(uri: str, options: dict[str, str] | None = None) -> ObjectStore:
    """Open a store, without reading or writing (``probe`` does that).

    Args:
        uri: a path, ``file:///path``, ``s3://bucket/prefix``, or ``memory://name`` (one store per name and process; a
            new one each time without a name).
        options: for S3, with the names of deltalake and object_store: ``AWS_ENDPOINT_URL``, ``AWS_REGION``,
            ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``. What is missing comes from the environment and the
            machine's role.

    Raises:
        ValueError: no such kind of store.
        StoreUnfit: the library of this kind is not installed, or an option is not valid.
    """
    if "://" not in uri:
        if ONE_SLASH.match(uri):
            raise ValueError(f"{uri!r} is no store: expected s3://bucket/prefix, or ./NAME for a folder with a colon")
        return DirectoryStore(uri)
    parts = urlsplit(uri)
    if "@" in parts.netloc:
        # The URI is not in the message, because it has a password.
        raise ValueError("a store's URI has no user name or password: S3's key comes from the environment or options")
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return DirectoryStore(parts.path)
    if parts.scheme == "memory":
        return _memory_stores.setdefault(parts.netloc, MemoryStore()) if parts.netloc else MemoryStore()
    if parts.scheme == "s3" and parts.netloc:
        from weft.storage.object_store.s3 import S3Store

        return S3Store(parts.netloc, parts.path.strip("/"), options or {})
    raise ValueError(f"{uri!r} is no store: expected a path, file:///path, s3://bucket/prefix or memory://name")
