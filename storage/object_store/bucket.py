"""The store in a bucket: of S3, of a service that speaks its protocol and passes ``probe``, of Google Cloud Storage or
of Azure Blob Storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

from obstore import sign_async
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from weft.storage.native_threads import wait_at_exit
from weft.storage.object_store.protocol import (
    PART_SUFFIX,
    AccessDenied,
    AlreadyExists,
    Buffer,
    Listed,
    Listing,
    NotFound,
    Object,
    PreconditionFailed,
    StoreError,
    StoreUnfit,
    Written,
    check_key,
    check_prefix,
    clamp_range,
    valid_key,
)
from weft.storage.object_store.services import BucketPlace, is_denied, sentence

# Conditional PUTs to one key that overlap on purpose: each is half sent before any of them is finished.
#
# A server that checks the condition when a request begins, and writes when it has ended, keeps its promises for
# requests in sequence and breaks them here. An ordinary client cannot time its requests like this.

TIMEOUT_S = 30.0
SETTLE_S = 0.03
"""Time for a server to begin with requests that are half sent."""
_HEAD_BYTES_MAX = 1 << 16


class Answer(NamedTuple):
    """A server's answer."""

    status: int
    fields: Mapping[str, str]
    """Headers, by their names in lower case."""


async def put_overlapping(url: str, bodies: Sequence[bytes], headers: Sequence[tuple[str, str]]) -> list[Answer]:
    """Put every body under one signed URL, all of them half sent before the first is finished.

    Args:
        url: signed for PUT, with the host as only header.
        headers: names and values, the condition among them.

    Raises:
        OSError: a connection could not be made, broke, or took too long (``TimeoutError``).
        ValueError: an answer is not HTTP.
    """
    async with asyncio.timeout(TIMEOUT_S):
        # All connections first: a handshake in between would let the first request end before the second begins.
        connections = [await _connect(url) for _ in bodies]
        try:
            for (_, writer), body in zip(connections, bodies, strict=True):
                fields = (*headers, ("Content-Length", str(len(body))))
                await _send(writer, _head(url, "PUT", fields) + body[: len(body) // 2])
            # The server has to have begun with each request. Servers that check a condition at that moment then find no
            # object, and write all of them.
            await asyncio.sleep(SETTLE_S)
            rests = [
                _send(writer, body[len(body) // 2 :]) for (_, writer), body in zip(connections, bodies, strict=True)
            ]
            await asyncio.gather(*rests)
            return [await _answer(reader) for reader, _ in connections]
        finally:
            for _, writer in connections:
                writer.close()


async def ask(url: str) -> Answer:
    """Send a GET. Raises as ``put_overlapping``."""
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await _connect(url)
        try:
            writer.write(_head(url, "GET", ()))
            return await _answer(reader)
        finally:
            writer.close()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    # A server may refuse at once and close; its answer is read anyway.
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    return await asyncio.open_connection(parts.hostname, port, ssl=secure or None, limit=_HEAD_BYTES_MAX)


def _head(url: str, method: str, headers: Sequence[tuple[str, str]]) -> bytes:
    parts = urlsplit(url)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers), "", ""]).encode("ascii")


async def _answer(reader: asyncio.StreamReader) -> Answer:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ValueError("the server closed the connection without an answer") from error
    first, *lines = head.split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status = first.split(" ")[1:2]
    if not status or not status[0].isdecimal():
        raise ValueError(f"{first[:80]!r} is not an answer in HTTP")
    return Answer(int(status[0]), fields)


wait_at_exit()

READ_RETRIES_MAX = 5
SIGNED_SECONDS = 300
PART_BYTES = 8 << 20
"""Bytes of a part of an upload: S3 takes 10,000 parts of at least 5 MiB."""
PARTS_AT_ONCE = 2
COPY_SECONDS_MAX = 600
COPY_POLL_SECONDS = 0.2


class BucketStore:
    """An ``ObjectStore`` with conditional PUTs: If-None-Match and If-Match, or at Google their generations.

    Only reads are retried. A write without a clear answer raises ``StoreError``, and the caller reads the object to
    learn the outcome.

    Args:
        place: the bucket, and the store's place in it.
    """

    def __init__(self, place: BucketPlace) -> None:
        self._place = place
        self._service = place.service
        self._reads = place.open(READ_RETRIES_MAX)
        # No retries: the second attempt of a conditional PUT answers "precondition failed" to the first one's success.
        self._writes = place.open(0)

    async def create(self, key: str, data: Buffer) -> str:
        """Create an object: PUT on the condition that there is none."""
        with self._answers(check_key(key)):
            try:
                return await self._put(key, data, "create")
            except (AlreadyExistsError, PreconditionError):
                await self._refuse_create(key)
            except FileNotFoundError:
                raise StoreError(
                    f"{self._place.uri} does not exist: create the bucket, or correct the store's address"
                ) from None

    async def create_from(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        """Create an object: a multipart upload beside it, and a copy on the condition that there is none of the key.

        The upload itself cannot be made conditional here; the copy happens within the bucket. An upload that a crash
        leaves unfinished goes by the bucket's rule for incomplete uploads (AbortIncompleteMultipartUpload).
        """
        check_key(key)
        first, size = bytearray(), 0
        async for part in parts:
            first += part
            if len(first) >= PART_BYTES:
                break
        else:
            # One request instead of seven: most objects that are joined are small.
            await self.create(key, first)
            return len(first)
        failed: Exception | None = None

        async def rest() -> AsyncIterator[bytes]:
            nonlocal size, failed
            size = len(first)
            yield bytes(first)
            first.clear()
            try:
                async for part in parts:
                    size += len(part)
                    yield bytes(part)
            except Exception as error:
                failed = error
                raise

        try:
            await self._upload(key, rest(), lambda: size)
        except (StoreError, NotFound):
            if failed is not None:
                raise failed from None
            raise
        return size

    async def _upload(self, key: str, parts: AsyncIterator[bytes], size: Callable[[], int]) -> None:
        # Of this call alone: what a copy makes must be what this call uploaded.
        upload = f"{key}.{secrets.token_hex(8)}{PART_SUFFIX}"
        try:
            with self._answers(key):
                await self._reads.put_async(
                    upload, parts, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
                )
                try:
                    # No service has a conditional multipart upload that the library could make, so the condition is on
                    # a copy within the bucket.
                    await self._writes.copy_async(upload, key, overwrite=False)
                except (AlreadyExistsError, PreconditionError):
                    await self._refuse_create(key)
                if self._service.copies_later:
                    await self._copied(key, size())
        finally:
            with contextlib.suppress(BaseError, OSError):
                await self._reads.delete_async(upload)

    async def _copied(self, key: str, size: int) -> None:
        """Wait for the end of a copy, which the service may do after it has answered.

        Raises:
            StoreError: it had not ended in time, or its outcome is unknown.
        """
        with contextlib.suppress(TimeoutError, NotFound):
            async with asyncio.timeout(COPY_SECONDS_MAX):
                while True:
                    # Azure's target of a copy is empty until the copy has ended, and remains so if it fails.
                    if await self._size(key) == size:
                        return
                    await asyncio.sleep(COPY_POLL_SECONDS)
        raise StoreError(f"{key}: the copy of the uploaded parts is not confirmed by the store")

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        """Replace an object: PUT on the condition that it has not changed."""
        with self._answers(check_key(key)):
            try:
                return await self._put(key, data, {self._service.version: expected_etag})
            except PreconditionError:
                raise PreconditionFailed(f"{key}: changed") from None
            except FileNotFoundError:
                raise PreconditionFailed(f"{key}: missing") from None

    async def get(self, key: str) -> Object:
        """Return an object: one GET."""
        with self._answers(check_key(key)):
            result = await self._reads.get_async(key)
            etag = self._etag(key, result.meta)
            written = Written(int(result.meta["last_modified"].timestamp()) * 1_000_000_000, self._place.is_remote)
            return Object(bytes(await result.bytes_async()), etag, written)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a range: one ranged GET; a negative start is a suffix range, or at Azure a HEAD before it."""
        if length <= 0:
            clamp_range(await self._size(key), start, length)
            return b""
        if start < 0 and not self._service.suffix_ranges:
            start, end = clamp_range(await self._size(key), start, length)
            length = end - start
            if not length:
                return b""
        part = {"suffix": -start} if start < 0 else (start, start + length)
        with self._answers(check_key(key)):
            try:
                result = await self._reads.get_async(key, options={"range": part})
                return bytes(await result.bytes_async())[:length]
            except FileNotFoundError:
                raise
            except (BaseError, OSError):
                # An empty range is an error of the protocol (416), but an empty answer here.
                first, end = clamp_range(await self._size(key), start, length)
                if first < end:
                    raise
                return b""

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        """List objects, in as many LIST requests as the limit needs; at Azure those before ``after`` are listed, too.

        Raises:
            StoreUnfit: the bucket lists in another order, as one with a hierarchical namespace does.
        """
        prefix, last = check_prefix(prefix), after or ""
        found: Listing = []
        with self._answers(prefix):
            stream = self._reads.list_async(prefix or None, offset=after or None, chunk_size=min(limit or 1000, 1000))
            async for page in stream:
                for meta in page:
                    # Readers find the end of a log by the order of names. In another order they would take a part for
                    # the whole.
                    if meta["path"] <= last:
                        raise StoreUnfit(
                            f"{self._place.uri} lists {meta['path']} after {last}, not in the order of names. Use a "
                            "bucket without a hierarchical namespace"
                        )
                    last = meta["path"]
                    if valid_key(last):  # other names in a bucket are not Weft's objects
                        found.append(Listed(last, meta["size"]))
                if limit is not None and len(found) >= limit:
                    return found[:limit]
        return found

    async def delete(self, key: str) -> None:
        """Delete an object: one DELETE."""
        with self._answers(check_key(key)), contextlib.suppress(FileNotFoundError):
            await self._reads.delete_async(key)

    async def sync(self, key: str) -> None:
        """Return when the object is found: a visible object of a bucket is durable."""
        await self._size(key)

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        """Return the URI and the given options. For an endpoint without TLS, they allow plain HTTP."""
        return f"{self._place.uri}/{check_key(key)}", self._place.options_elsewhere

    async def signed_urls(self, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """Return URLs by which anyone may read objects for some time. No request is made, unless the service has to
        sign.

        Raises:
            StoreError: the store's credentials cannot sign.
        """
        names = [*map(check_key, keys)]
        with self._answers(names[0]):
            found: Sequence[str] = await sign_async(self._reads, "GET", names, timedelta(seconds=seconds))
        return found

    async def overlap(self, key: str, bodies: Sequence[bytes], expected_etag: str | None) -> Sequence[bool] | None:
        """Put every body to one key at once, with overlapping requests, as creates or as swaps; for ``probe``.

        Returns:
            For each body, whether the store accepted it. None if one of them had no clear answer, or if the service
            signs no such request.
        """
        if (headers := self._service.overlap) is None:
            return None
        condition = headers.create if expected_etag is None else (headers.swap, expected_etag)
        try:
            answers = await put_overlapping(await self._signed("PUT", key), bodies, (condition, *headers.others))
        except (BaseError, OSError, ValueError):
            return None
        accepted, refused = {200, 201, 204}, {404, 409, 412}
        # A server that does not take signed requests says nothing about races; the probe then uses the ordinary client.
        if any(answer.status not in accepted | refused for answer in answers):
            return None
        return [answer.status in accepted for answer in answers]

    async def name(self) -> str:
        """Return the server's own name, if it reports one, and its address."""
        answer, address = Answer(0, {}), self._place.uri
        if self._service.overlap is None:
            return f"{self._service.what} ({address})"
        with contextlib.suppress(BaseError, OSError, ValueError):
            url = await self._signed("GET", "cluster.json")
            address = f"{self._place.uri} at {urlsplit(url).netloc}"
            answer = await ask(url)
        return f"{server} ({address})" if (server := answer.fields.get("server")) else address

    @contextlib.contextmanager
    def _answers(self, key: str) -> Iterator[None]:
        """Turn obstore's errors into the store's. An error that is not a clear answer means that the outcome is
        unknown."""
        try:
            yield
        except FileNotFoundError:
            raise NotFound(key) from None
        except (BaseError, OSError) as error:
            kind = AccessDenied if is_denied(error) else StoreError
            raise kind(f"{key}: {sentence(error, self._place.endpoint.name)}") from error

    async def _signed(self, method: Any, key: str) -> str:
        return str(await sign_async(self._reads, method, check_key(key), timedelta(seconds=SIGNED_SECONDS)))

    async def _refuse_create(self, key: str) -> NoReturn:
        # obstore reports "conflict" in the same way, which only means that another request is in progress: read the
        # object.
        with contextlib.suppress(FileNotFoundError):
            await self._reads.head_async(key)
            raise AlreadyExists(key) from None
        raise StoreError(f"{key}: the store refused a create, yet holds no such object") from None

    async def _put(self, key: str, data: Buffer, mode: Any) -> str:
        # One request: a multipart upload cannot be made conditional everywhere.
        result = await self._writes.put_async(key, bytes(data), mode=mode, use_multipart=False)
        return self._etag(key, result)

    async def _size(self, key: str) -> int:
        with self._answers(check_key(key)):
            return int((await self._reads.head_async(key))["size"])

    def _etag(self, key: str, facts: Any) -> str:
        found: str | None = facts[self._service.version]
        if not found:
            raise StoreUnfit(f"{key}: the store gives objects no etag, so a swap cannot be safe")
        return found
