"""A client of the hub's API for programs on asyncio: the methods of ``weft.client``, to be awaited."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import aiohttp
from yarl import URL

from weft.client.operations import (
    ANSWER_BYTES_MAX,
    ERROR_BYTES_MAX,
    PASSING,
    TIMEOUT_S,
    WAIT_S,
    Fetched,
    HubRefusal,
    HubUnreachable,
    Listed,
    Operations,
    Request,
    after_page,
    checked,
    event_of,
    path_of,
    refusal_of,
    trusting,
    unreachable,
    with_query,
)
from weft.hub_api.records import TailEvent
from weft.network.reload import read_token

Args = ParamSpec("Args")
AList = TypeVar("AList", bound=Listed)
T = TypeVar("T")


class AsyncClient(Operations):
    """A client of one hub, within ``async with``. Tasks may share it; each request has a connection of its own.

    A method raises as that of ``Client``. What a request that is cancelled did is unknown. Proxies of the environment
    are left alone.

    Args:
        url, token, token_file, ca_file, tls, bytes_max: as of ``Client``.
        timeout_s: longest wait for a connection, and for the hub's next bytes.
        connections_max: most requests under way, tails among them; more wait for their turn, for ``timeout_s``.
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
        connections_max: int = 100,
    ) -> None:
        self._url, self._token, self._token_file = checked(url, token, token_file), token, token_file
        self._tls = tls if ca_file is None else trusting(ca_file)
        self._timeout = aiohttp.ClientTimeout(connect=timeout_s, sock_connect=timeout_s, sock_read=timeout_s)
        self._bytes_max, self._connections_max = bytes_max, connections_max
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # On a connection that stays open aiohttp repeats PUT and DELETE if the hub has closed it meanwhile.
        connector = aiohttp.TCPConnector(limit=self._connections_max, force_close=True, ssl=self._tls or True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str | None = None,
    ) -> Fetched:
        """Return the answer to ``method``: GET unless given, or with a body POST. Raises as ``Client.fetch``."""
        async with self.opened(path, body, headers, method=method) as answer:
            data = await _first(answer, self._bytes_max + 1)
            if len(data) > self._bytes_max:
                asked = self._url + path.partition("?")[0]
                raise HubUnreachable(f"{asked} answers with more than {self._bytes_max} bytes: ask for less at once")
            return Fetched(data, answer.headers)

    @contextlib.asynccontextmanager
    async def opened(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer to a request, to read it as it comes. Raises as ``fetch``, also while it is read."""
        if self._session is None:
            raise ValueError("the client is not open: use it within `async with AsyncClient(...) as hub`")
        token = self._token if self._token_file is None else await asyncio.to_thread(read_token, self._token_file)
        sent = {"Accept-Encoding": "identity", **(headers or {})}
        if body is not None:
            sent["Content-Type"] = "application/json"
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        asked = self._url + path.partition("?")[0]
        try:
            async with self._session.request(
                method or ("GET" if body is None else "POST"),
                URL(self._url + path, encoded=True),
                data=body,
                headers=sent,
                allow_redirects=False,
            ) as answer:
                if answer.status >= 300:
                    problem = await _first(answer, ERROR_BYTES_MAX)
                    raise refusal_of(answer.status, answer.reason or "", answer.headers.get("Retry-After", ""), problem)
                yield answer
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            cut = isinstance(error, aiohttp.ServerDisconnectedError)
            cause = http.client.RemoteDisconnected(str(error)) if cut else getattr(error, "os_error", error)
            raise unreachable(asked, cause) from None

    async def tail(
        self,
        stream: str,
        *,
        position: str | None = None,
        tenant: str | None = None,
        edge: str | None = None,
        key: str | None = None,
        wait_s: float = WAIT_S,
    ) -> AsyncGenerator[TailEvent, None]:
        """Yield new records of a stream as they are committed, as ``Client.tail`` does. A loop that is left early
        closes the connection at once within ``contextlib.aclosing``, else some time later."""
        path = with_query(path_of(stream, "/tail"), {"tenant": tenant, "edge": edge, "key": key})
        while True:
            try:
                async with self.opened(path, headers={} if position is None else {"Last-Event-ID": position}) as answer:
                    async for line in self._lines(answer):
                        if (event := event_of(line)) is None:
                            continue
                        position = event.position
                        if event.records:
                            yield event
            except HubUnreachable:
                pass
            except HubRefusal as refused:
                if refused.status not in PASSING:
                    raise
            await asyncio.sleep(wait_s)

    async def _lines(self, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """Yield lines of any length up to the bound; aiohttp's own have 128 KiB."""
        rest = bytearray()
        async for part in answer.content.iter_any():
            rest += part
            if b"\n" in part:
                *lines, last = bytes(rest).split(b"\n")
                rest = bytearray(last)
                for line in lines:
                    yield line
            if len(rest) > self._bytes_max:
                raise HubUnreachable(f"{self._url} sends an event of more than {self._bytes_max} bytes")

    async def _answer(self, request: Request[T], /) -> T:
        fetched = await self.fetch(request.path, request.body, request.headers, method=request.method)
        return request.read(fetched, self._url)


async def pages(
    ask: Callable[Args, Coroutine[Any, Any, AList]], *args: Args.args, **query: Args.kwargs
) -> AsyncIterator[AList]:
    """Yield the pages of a list, as ``weft.client.pages`` does: ``async for page in pages(hub.lanes, "telemetry")``."""
    after: Any = query.get("after")
    while True:
        page = await ask(*args, **query)
        yield page
        if (after := after_page(page, after)) is None:
            return
        query["after"] = after


async def _first(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Return what an answer has, up to a number of bytes."""
    data = bytearray()
    async for part in answer.content.iter_chunked(1 << 16):
        data += part
        if len(data) >= most:
            break
    return bytes(data[:most])
