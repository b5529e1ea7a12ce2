"""Warnings about settings that are allowed and perhaps not intended."""

from __future__ import annotations

from collections.abc import Iterator

from weft.config.intake.listeners import bind_of, protocol_of
from weft.config.models import EdgeConfig
from weft.config.streams import Retain
from weft.config.units import format_size, parse_bind, parse_listen
from weft.edge_node.check import proton
from weft.edge_node.check.derived import carried_streams, streams_of
from weft.edge_node.check.sizes import topics_log_bytes


def notes(config: EdgeConfig) -> list[str]:
    """Return warnings about settings that are allowed and perhaps not intended, a sentence each."""
    return [
        *_notes_on_links(config), *_notes_on_listeners(config), *_notes_on_state(config), *_notes_on_unrouted(config),
    ]  # fmt: skip


def _notes_on_links(config: EdgeConfig) -> Iterator[str]:
    carried = {name for link in config.links.values() for name in carried_streams(link, config)}
    stay = [
        name
        for name, stream in streams_of(config).items()
        if name not in carried and stream.retain == Retain() and stream.when_full == "refuse"
    ]
    if stay:
        whose = "its" if len(stay) == 1 else "their"
        yield (
            f"no link carries {', '.join(stay)}: {whose} records are never deleted. Once they fill disk.budget "
            f"({format_size(config.disk.budget_bytes)}), devices get no acknowledgements, whatever the stream. Give it "
            "a link, `retain` or `when_full: drop_oldest`"
        )


def _notes_on_listeners(config: EdgeConfig) -> Iterator[str]:
    for name, listener in config.listeners.items():
        if listener is None or listener.tls is not None or parse_listen(bind_of(name, listener)).is_loopback:
            continue
        if config.auth.users_file is not None:
            yield f"listeners.{name} has no TLS: passwords cross the network in clear text. Add `tls`"
    yield from _notes_on_strangers(config)
    for name, listener in config.listeners.items():
        if listener is not None and protocol_of(name, listener) == "amqp" and not proton.is_installed():
            yield f"listeners.{name}: clients of AMQP 1.0 are refused. {proton.MISSING}"


def _notes_on_strangers(config: EdgeConfig) -> Iterator[str]:
    """Yield the rights of other machines' programs without a login; `anonymous` grants them, and is easily
    forgotten."""
    for name, listener in config.listeners.items():
        if listener is None or listener.anonymous != "allowed_beyond_loopback":
            continue
        bind = bind_of(name, listener)
        if not parse_listen(bind).is_loopback:
            may = "publish and read every topic" if config.auth.acl_file is None else "connect without a user name"
            yield (
                f"listeners.{name}: every program that reaches {bind} may {may}. Set auth.users_file with "
                "`anonymous: never`, unless you trust that network"
            )
    if config.http is not None and not parse_bind(config.http.bind).is_loopback:
        yield (
            f"http: every program that reaches {config.http.bind} may read the status page, which names streams, hubs "
            "and topics. Bind to 127.0.0.1, unless you trust that network"
        )
        if config.http.anonymous == "allowed_beyond_loopback" and config.http.hosts is None:
            yield (
                "http: a web page in a browser of that network may read the status page under a name of its own (DNS "
                "rebinding). List the names of the node in http.hosts, or none: `hosts: []`"
            )


def _notes_on_state(config: EdgeConfig) -> Iterator[str]:
    asked, used = config.state.topics_log_bytes, topics_log_bytes(config)
    if asked is not None and used < asked:
        yield (
            f"state.topics_log ({format_size(asked)}) is more than a quarter of disk.budget "
            f"({format_size(config.disk.budget_bytes)}): {format_size(used)} is used, so that absent sessions do not "
            "fill the disk. Set it to that, or raise disk.budget"
        )


def _notes_on_unrouted(config: EdgeConfig) -> Iterator[str]:
    if config.unrouted.policy == "refuse" and config.auth.refused_publish == "acknowledge":
        yield (
            "`unrouted: refuse` with `auth.refused_publish: acknowledge`: clients of MQTT 3.1.1 get an acknowledgement "
            "for messages that no stream matches, although these are not kept"
        )
