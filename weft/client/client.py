"""A client of the hub's API: a method for each operation of its document (docs/reference/openapi.json) whose answer
has an end.

Answers are the types from which that document is made. Fields that a later hub adds are ignored. ``fetch`` is below: it
asks any path, and returns what came.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from weft.client.operations import (
    ANSWER_BYTES_MAX,
    TIMEOUT_S,
    WAIT_S,
    Fetched,
    HubUnreachable,
    Listed,
    Operations,
    Request,
    Rows,
    after_page,
    checked,
    follow,
    refusal,
    trusting,
    unreachable,
)
from weft.client.operations import path_of as _of
from weft.client.operations import with_query as _with
from weft.hub_api.records import RecordOfStream, TailEvent
from weft.network.reload import read_token

Args = ParamSpec("Args")
AList = TypeVar("AList", bound=Listed)
T = TypeVar("T")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: a token is for the hub that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Client(Operations):
    """A client of one hub. Threads may share it; it keeps no connection open.

    A method raises ``HubRefusal`` when the hub refuses, ``HubUnreachable`` without an answer, and ``OSError`` or
    ``ValueError`` when the token's file has none.

    Args:
        url: the hub, as ``https://hub.example.com``.
        token: one whose scope opens what is asked.
        token_file: instead, its file. It is read before each request, so that the token can change.
        ca_file: PEM file of the authorities that the hub's certificate is trusted by; None for the system's.
        tls: instead, the context for ``https``.
        timeout_s: longest wait for the hub's next bytes.
        bytes_max: longest answer.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: str | None = None,
        ca_file: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
        bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        self._url = checked(url, token, token_file)
        tls = tls if ca_file is None else trusting(ca_file)
        self._token, self._token_file = token, token_file
        self._timeout_s, self._bytes_max = timeout_s, bytes_max
        handlers = [] if tls is None else [urllib.request.HTTPSHandler(context=tls)]
        self._open = urllib.request.build_opener(_NoRedirects, *handlers).open

    def fetch(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str | None = None,
    ) -> Fetched:
        """Return the answer to ``method``: GET unless given, or with a body POST.

        Raises:
            HubRefusal: the status is none of success.
            HubUnreachable: there is no whole answer.
            OSError, ValueError: the token's file has no token.
        """
        asked = self._url + path.partition("?")[0]
        with self.opened(path, body, headers, method=method) as answer:
            data = answer.read(self._bytes_max + 1)
            fetched, rest = Fetched(data, answer.headers), answer.length
        if len(data) > self._bytes_max:
            raise HubUnreachable(f"{asked} answers with more than {self._bytes_max} bytes: ask for less at once")
        if rest:  # http.client does not tell a cut answer that is read up to a length
            raise HubUnreachable(f"{asked} does not answer (the connection ended {rest} bytes before its answer's end)")
        return fetched

    @contextlib.contextmanager
    def opened(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str | None = None,
    ) -> Iterator[Any]:
        """Yield the answer to a request, an `http.client.HTTPResponse`, to read it as it comes. Raises as ``fetch``,
        also while it is read."""
        token = self._token if self._token_file is None else read_token(self._token_file)
        request = urllib.request.Request(self._url + path, body, dict(headers or {}), method=method)
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        asked = self._url + path.partition("?")[0]
        try:
            with self._open(request, timeout=self._timeout_s) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            raise refusal(error) from None
        except (OSError, ValueError, http.client.HTTPException) as error:  # the last: the hub ended in its answer
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise unreachable(asked, reason if isinstance(reason, BaseException) else error) from None

    def tail(
        self,
        stream: str,
        *,
        position: str | None = None,
        tenant: str | None = None,
        edge: str | None = None,
        key: str | None = None,
        wait_s: float = WAIT_S,
    ) -> Iterator[TailEvent]:
        """Yield new records of a stream as they are committed, without an end, each once: it continues at the position
        behind the last event when the hub ends or cannot be reached. Without ``position`` it begins at the end.

        Args:
            wait_s: time before a new attempt.

        Raises:
            HubRefusal: the hub refuses, for a reason that waiting does not mend.
        """
        path = _with(_of(stream, "/tail"), {"tenant": tenant, "edge": edge, "key": key})
        return follow(lambda headers: self.opened(path, headers=headers), position, wait_s)

    def all_records(
        self, stream: str, shard: int, *, offset: int = 0, end: int | None = None, tenant: str | None = None
    ) -> Iterator[RecordOfStream]:
        """Yield the records of one shard in the order of their offsets, up to the end that it had at the beginning.

        Args:
            end: offset to end before; None for the shard's present end.
        """
        name = str(shard)
        stop = self.stream(stream, tenant=tenant).next_offset.get(name, 0) if end is None else end
        chunk: int | None = None
        while offset < stop:
            page = self.records(stream, shard=shard, offset=offset, chunk=chunk, tenant=tenant, limit=1000)
            yield from (record for record in page.records if record.offset < stop)
            was, (offset, chunk) = (offset, chunk), (page.next_offset.get(name, offset), page.next_chunk.get(name))
            if (offset, chunk) == was:
                raise HubUnreachable(f"{self._url} does not continue at offset {offset} of shard {shard}")

    def all_rows(
        self, stream: str, shard: int, *, offset: int | None = 0, limit: int | None = None, tenant: str | None = None
    ) -> Iterator[Rows]:
        """Yield the rows of one shard in the order of their offsets, from log and table, up to the end that it had at
        the beginning or somewhat behind it: ``next_offset`` of the last answer continues. One answer is in memory at a
        time.

        Args:
            offset: of the first row; None for the first that the log has, without those that only the table has.
            limit: most rows of an answer.

        Raises:
            HubRefusal: with status 410 if the log no longer has the rows, and there is no table of all rows.
        """
        chunk: int | None = None
        stop: int | None = None
        while True:
            page = self.rows(stream, shard=shard, offset=offset, chunk=chunk, limit=limit, tenant=tenant)
            stop = page.end if stop is None else stop
            was, (offset, chunk) = (offset, chunk), (page.next_offset, page.next_chunk)
            if offset not in (None, was[0]):
                yield page
            if (offset is None and chunk is None) or (offset is not None and offset >= stop):
                return
            if (offset, chunk) == was:
                raise HubUnreachable(f"{self._url} does not continue at offset {offset} of shard {shard}")

    def _answer(self, request: Request[T], /) -> T:
        fetched = self.fetch(request.path, request.body, request.headers, method=request.method)
        return request.read(fetched, self._url)


def pages(ask: Callable[Args, AList], *args: Args.args, **query: Args.kwargs) -> Iterator[AList]:
    """Yield the pages of a list: ``pages(client.lanes, "telemetry")``. Each may name shards that cannot be read.

    Args:
        ask: a method of ``Client`` that takes ``after``.
    """
    after: Any = query.get("after")
    while True:
        page = ask(*args, **query)
        yield page
        if (after := after_page(page, after)) is None:
            return
        query["after"] = after
