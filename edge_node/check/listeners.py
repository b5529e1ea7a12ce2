"""Rules for listeners: their reachability and their authentication."""

from __future__ import annotations

from collections.abc import Iterator

from weft.config.errors import Finding, KeyPath
from weft.config.intake.listeners import TLS_NAMES, Listener, bind_of, protocol_of
from weft.config.models import EdgeConfig
from weft.config.units import UnixSocket, parse_bind, parse_listen, quoted
from weft.config.values import Anonymous
from weft.protocols.topics import valid_topic


def listeners(config: EdgeConfig) -> Iterator[Finding]:
    """Yield the problems of the listeners and the status page."""
    http, binds = config.http, dict[str, str]()
    for name, listener in config.listeners.items():
        if listener is None:
            continue
        path = ("listeners", name)
        bind = bind_of(name, listener)
        if bind in binds and not bind.endswith(":0"):
            yield Finding((*path, "bind"), f"{bind} is the address of listeners.{binds[bind]} already. Choose another")
        binds[bind] = name
        yield from _listener(name, listener, has_users=config.auth.users_file is not None)
    if http is not None:
        yield from open_beyond_loopback(("http",), "bind", http.bind, http.anonymous)


def _listener(name: str, listener: Listener, *, has_users: bool) -> Iterator[Finding]:
    path, bind, anonymous = ("listeners", name), parse_listen(bind_of(name, listener)), listener.anonymous
    if name in TLS_NAMES and listener.tls is None:
        yield Finding((*path, "tls"), f"is missing: a listener named {name} needs TLS. Set certificate and key")
    if listener.websocket is not None and protocol_of(name, listener) != "mqtt":
        yield Finding((*path, "websocket"), "is for listeners of MQTT only. Delete it")
    if listener.vhosts is not None and protocol_of(name, listener) != "amqp":
        yield Finding((*path, "vhosts"), "is for listeners of AMQP only. Delete it")
    for vhost, prefix in (listener.vhosts or {}).items():
        if prefix and not valid_topic(prefix):
            yield Finding((*path, "vhosts", vhost), f"expected a topic such as plant/7, got {quoted(prefix)}")
    if listener.websocket is not None and not listener.websocket.path.startswith("/"):
        yield Finding(
            (*path, "websocket", "path"), f"expected a path such as /mqtt, got {quoted(listener.websocket.path)}"
        )
    if listener.origins and protocol_of(name, listener) != "http":
        yield Finding((*path, "origins"), "is for listeners of HTTP; MQTT has `websocket.origins`. Delete it")
    for origin in listener.origins:
        if origin != "*" and "://" not in origin:
            yield Finding(
                (*path, "origins"), f"expected an origin such as https://dash.example.com, got {quoted(origin)}"
            )
    if isinstance(bind, UnixSocket) and listener.proxy_protocol is None and listener.tls is not None:
        yield Finding((*path, "tls"), "a unix socket needs no TLS: it does not leave the machine. Delete it")
    if listener.tls is not None and listener.tls.crl_file is not None and listener.tls.client_ca is None:
        yield Finding((*path, "tls", "crl_file"), "needs `client_ca`: without it, no client shows a certificate")
    knows_names = has_users or (listener.tls is not None and listener.tls.client_ca is not None)
    if (
        anonymous != "allowed_beyond_loopback"
        and not knows_names
        and not (bind.is_loopback and anonymous == "loopback")
    ):
        yield Finding(
            (*path, "bind"),
            f"{bind} can be reached from other machines without authentication. Set auth.users_file or "
            "tls.client_ca, bind to 127.0.0.1, or set `anonymous: allowed_beyond_loopback`"
            if anonymous == "loopback"
            else "`anonymous: never` refuses every client without auth.users_file or tls.client_ca. Name one of them",
        )


def open_beyond_loopback(section: KeyPath, key: str, bind: str, anonymous: Anonymous) -> Iterator[Finding]:
    """Refuse a listener that strangers can reach, unless the configuration allows that explicitly."""
    if anonymous == "loopback" and not parse_bind(bind).is_loopback:
        yield Finding(
            (*section, key),
            f"{bind} can be reached from other machines without authentication. Bind to 127.0.0.1, or set "
            "`anonymous: allowed_beyond_loopback`",
        )
