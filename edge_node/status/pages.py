"""The node's own pages: a page for people at ``/``, and what it shows as JSON at ``/status``, ``/history``, ``/topics``
and ``/live``; plain tables at ``/tables``, Prometheus metrics at ``/metrics``.

Service managers and load balancers ask ``/healthz`` and ``/readyz``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from html import escape
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from weft.bounds.bound import Refusals
from weft.bounds.browsers import MISDIRECTED_REQUEST, is_misdirected, misdirected_advice
from weft.config.errors import SettingError
from weft.config.machine import why_not_listening
from weft.config.metrics.exposition import CONTENT_TYPE, load
from weft.config.units import approximate_duration, approximate_size, parse_bind
from weft.edge_node.status.facts import Health, outage_left, pair_line
from weft.edge_node.status.messages import MessagePages
from weft.network.http_server import Bound, HttpServer
from weft.network.pages.assets import Assets
from weft.protocols.health import health_answer

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0 2rem}td,th{padding:.3rem 1rem .3rem 0;text-align:left;"
    "border-bottom:1px solid #ddd}.bad{color:#b00020;font-weight:600}"
)
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "Cache-Control": "no-store"}
_FUNCTIONS = (
    "derived stream",
    "version",
    "rows in",
    "rows out",
    "rejected",
    "records waiting",
    "behind by",
    "remembers",
    "trouble",
)
_SCHEMAS = ("schema of stream", "checked", "too long", "accepted", "dead letters", "refused", "last misfit in")
_SOURCES = (
    "source",
    "at",
    "state",
    "messages",
    "values a second",
    "lag",
    "bad values",
    "overflows",
    "waiting for the disk",
    "waiting at the broker",
    "last error",
)
PAGE = "edge.html"
SHUTDOWN_TIMEOUT_S = 1.0


class Pages:
    """A server of the pages; ``start`` binds, ``close`` ends. Belongs to the event loop's thread."""

    def __init__(
        self,
        status: Callable[[], dict[str, Any]],
        metrics: Callable[[], bytes],
        health: Health,
        *,
        history: Callable[[bool], dict[str, Any]],
        messages: MessagePages,
        connections_max: int,
        monotonic: Callable[[], float],
        refusals: Refusals,
    ) -> None:
        """Serve pages about these parts.

        Args:
            status: returns the facts of ``edge_node.status.facts``.
            metrics: the metrics in Prometheus's text format.
            health: whether the node is well and ready.
            history: returns the points of ``edge_node.status.facts``, of the last day if the argument is True.
            messages: pages with messages.
            connections_max: maximum number of idle connections, and of connections of one address.
            monotonic: seconds.
            refusals: counts refusals because of bounds.
        """
        self._status = status
        self._metrics = metrics
        self._health = health
        self._history = history
        self._messages = messages
        self._assets = Assets("weft.edge_node.status.page")
        bound = Bound(connections_max, "limits.http_connections")
        self._server = HttpServer(bound, bound, monotonic, refusals, shutdown_s=SHUTDOWN_TIMEOUT_S)
        self.port = 0

    async def start(self, bind: str, hosts: Collection[str] | None = None) -> None:
        """Listen on ``host:port``. Raise ``SettingError`` when the address cannot be used.

        Args:
            hosts: names under which the pages may be called, beside addresses; None: any where other machines reach
                the address.
        """
        address = parse_bind(bind)
        if hosts is None and address.is_loopback:
            hosts = ()
        names = [] if hosts is None else [_under_names(hosts)]
        app = web.Application(client_max_size=1024, middlewares=[self._server.middleware, *names])
        app.router.add_get("/", self._page)
        app.router.add_get("/page/{asset}", self._asset)
        app.router.add_get("/tables", self._tables)
        app.router.add_get("/status", self._json)
        app.router.add_get("/history", self._points)
        self._messages.add_to(app)
        app.router.add_get("/metrics", self._text)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        try:
            await self._server.start(app, address.host, address.port)
        except OSError as error:
            raise SettingError(("http", "bind"), why_not_listening(error, address)) from None
        self.port = self._server.addresses[0][1]

    async def close(self) -> None:
        """Stop listening and end open requests."""
        self._messages.close()
        await self._server.close()

    async def _json(self, _request: web.Request) -> web.Response:
        body = msgspec.json.encode(self._status()) + b"\n"  # people read it on a terminal
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)

    async def _text(self, _request: web.Request) -> web.Response:
        await load()
        return web.Response(body=self._metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(**health_answer("healthy", self._health.unhealthy(), request.headers))

    async def _readyz(self, request: web.Request) -> web.Response:
        return web.Response(**health_answer("ready", self._health.unready(), request.headers))

    async def _page(self, request: web.Request) -> web.Response:
        return await self._answer(request, PAGE)

    async def _asset(self, request: web.Request) -> web.Response:
        return await self._answer(request, request.match_info["asset"])

    async def _answer(self, request: web.Request, name: str) -> web.Response:
        answer = await self._assets.answer(request, name)
        return web.Response(status=404, text="the page has no such file\n") if answer is None else answer

    async def _tables(self, _request: web.Request) -> web.Response:
        return web.Response(text=tables(self._status()), content_type="text/html", headers=_HEADERS)

    async def _points(self, request: web.Request) -> web.Response:
        span = request.query.get("span", "hour")
        if span not in ("hour", "day"):
            return web.Response(status=400, text="span is hour or day\n")
        body = msgspec.json.encode(self._history(span == "day"))
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)


def _under_names(names: Collection[str]) -> Middleware:
    """Return a middleware that refuses requests under other names than the node's."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_misdirected(request.headers.getall("Host", ()), names):
            text = f"these pages are not served under this name: {misdirected_advice('http.hosts')}\n"
            return web.Response(status=MISDIRECTED_REQUEST, text=text)
        return await handler(request)

    return middleware


def tables(facts: dict[str, Any]) -> str:
    """Return the page of plain tables, which reloads itself every few seconds."""
    disk, unrouted = facts["disk"], facts["unrouted"]
    title = escape(f"{facts['tenant']}/{facts['node']}")
    summary = [
        ("up", approximate_duration(facts["uptime_seconds"])),
        ("clock", facts["clock"]),
        ("log", facts["log_error"] or facts["log_full"] or facts["log_low"] or "good"),
        ("disk", f"{approximate_size(disk['bytes'])} of {approximate_size(disk['budget_bytes'])}"),
        ("outage left", outage_left(facts)),
        ("connections", facts["mqtt"]["connections"]),
        ("messages received", facts["mqtt"]["publishes_received"]),
        ("messages that no stream matches", f"{unrouted['messages']} (unrouted: {unrouted['policy']})"),
    ]
    streams = [
        (name, s["next_seq"], s["next_seq"] - s["durable_end"], _lost(s["lost"]))
        for name, s in facts["streams"].items()
    ]
    links = [
        (name, link["state"], link["pending_records"], approximate_duration(link["pending_seconds"]), trouble(link))
        for name, link in facts["links"].items()
    ]
    pair = facts.get("pair")
    copies = [] if pair is None else [_copy_row(each) for each in pair["copies"].values()]
    functions = [
        (
            name,
            each["version"],
            each["rows_in"],
            each["rows_out"],
            each["rows_rejected"],
            "unknown" if each["lag_records"] is None else each["lag_records"],
            "unknown" if each["lag_seconds"] is None else approximate_duration(each["lag_seconds"]),
            approximate_size(each["state_bytes"]),
            "; ".join(filter(None, (each["trouble"], each["refused"], each["warning"]))),
        )
        for name, each in facts["functions"].items()
    ]
    sources = [_source_row(name, source) for name, source in facts["sources"].items()]
    counts = ("checked", "unchecked", "accepted", "dead_lettered", "refused", "last_misfit")
    schemas = [(name, *(each[count] for count in counts)) for name, each in facts.get("schemas", {}).items()]
    busiest = [(each["topic"], each["messages"]) for each in unrouted["busiest"]]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="5">'
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
        + _table((), summary)
        + _table(("stream", "records", "waiting for the disk", "lost"), streams)
        + (_table(_SOURCES, sources) if sources else "")
        + (_table(_SCHEMAS, schemas) if schemas else "")
        + (_table(_FUNCTIONS, functions) if functions else "")
        + _table(("link", "state", "records waiting", "behind by", "trouble"), links)
        + ("" if pair is None else _table((), _pair_rows(pair)) + _table(_COPIES, copies))
        + (_table(("topic that no stream matches", "messages"), busiest) if busiest else "")
        + '<p><a href=".">page</a> · <a href="status">JSON</a> · <a href="metrics">metrics</a></p></html>'
    )


_COPIES = ("copy of", "state", "records for the hubs", "size", "trouble")


def _pair_rows(pair: dict[str, Any]) -> list[tuple[str, Any]]:
    alone = pair["alone_since"]
    return [
        ("pair", pair_line(pair)),
        ("records with one disk", pair["records_with_one_disk"]),
        ("alone since", "" if alone is None else _utc(alone)),
        ("last trouble", pair["last_error"]),
    ]


def _copy_row(copy: dict[str, Any]) -> tuple[Any, ...]:
    state = "taking over" if copy["taking_over"] else "connected" if copy["connected"] else "away"
    size = f"{approximate_size(copy['bytes'])} of {approximate_size(copy['budget_bytes'])}"
    return f"{copy['tenant']}/{copy['node']}", state, copy["records"], size, copy["trouble"]


def trouble(link: dict[str, Any]) -> str:
    """Return what stops a link now. Past errors are not shown to people."""
    return str(link["last_error"] if link["state"] != "connected" else link.get("canary_alarm", ""))


def _source_row(name: str, source: dict[str, Any]) -> tuple[Any, ...]:
    lag, since, per_second = source["lag_seconds"], source["connected_since"], source["values_per_second"]
    return (
        name,
        source["url"],
        source["state"] if since is None else f"{source['state']} since {_utc(since)}",
        source["messages"],
        per_second,
        source["lag_unknown"] if lag is None else approximate_duration(lag),
        source["bad_values"],
        source["overflows"],
        source["unacknowledged"],
        source["waiting"],
        source["trouble"] or source["last_error"],
    )


def _utc(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%F %T UTC")


def _lost(by_reason: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in by_reason.items())


def _table(columns: tuple[str, ...], rows: list[Any]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(_cell(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
