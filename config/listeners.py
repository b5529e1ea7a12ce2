"""Where clients connect to an edge node, and who may."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from weft.config.values import Anonymous, Bind, Listen, MqttAnonymous, Networks, Path, RefusedPublish, Section


class Tls(Section, frozen=True, kw_only=True):
    """TLS of a listener. The files are read again when they change; connections stay."""

    certificate: Annotated[
        Path, Meta(description="PEM file of the listener's certificate, followed by the chain up to its authority.")
    ]
    key: Annotated[
        Path, Meta(description="PEM file of the certificate's key, not encrypted. Readable by the node's user alone.")
    ]
    client_ca: Annotated[
        Path | None,
        Meta(
            description="PEM file of the authorities whose client certificates are taken. The certificate's common "
            "name is then the user name, and no password is asked for. Without it clients are asked for none."
        ),
    ] = None
    client_certificate: Annotated[
        Literal["required", "optional"],
        Meta(description="With `client_ca`: whether clients without a certificate may come in by another way."),
    ] = "required"


class WebSocket(Section, frozen=True, kw_only=True):
    """MQTT over WebSocket, for browsers and for networks that let nothing but HTTP through."""

    path: Annotated[str, Meta(description="Path of the URL that clients connect to.")] = "/mqtt"
    origins: Annotated[
        tuple[str, ...] | None,
        Meta(
            description='Web pages that may connect, such as `https://dash.example.com`; `"*"` lets all. Left out: '
            "pages of the listener's own host. Clients that are no browsers are not asked."
        ),
    ] = None


class ProxyProtocol(Section, frozen=True, kw_only=True):
    """Connections come from a proxy that says who the client is (PROXY protocol, version 2)."""

    trusted: Annotated[
        Networks,
        Meta(
            description="Address or network, or a list of them, that the proxy connects from: `192.0.2.0/28`. "
            "Everybody else is refused, and so is a connection that does not begin with a PROXY header."
        ),
    ]


class MqttListener(Section, frozen=True, kw_only=True):
    """Where MQTT clients (3.1, 3.1.1 and 5.0) connect. With `tls` it is MQTTS, with `websocket` MQTT over WebSocket."""

    bind: Annotated[
        Listen,
        Meta(
            description="Address and port that MQTT clients connect to, or `unix:` and the path of a unix socket, "
            "which the file's owner and group may use. Port 0 takes any free port."
        ),
    ] = "127.0.0.1:1883"
    anonymous: Annotated[
        MqttAnonymous,
        Meta(
            description="Who may connect without a name: `never` nobody, `loopback` clients on this machine, "
            "`allowed_beyond_loopback` everyone who reaches the port. Behind a proxy that does not say who the client "
            "is, everyone seems to be where the proxy is."
        ),
    ] = "loopback"
    tls: Annotated[Tls | None, Meta(description="TLS; plain TCP without it. Required for `mqtts` and `wss`.")] = None
    websocket: Annotated[
        WebSocket | None,
        Meta(description="WebSocket; without it MQTT itself. Listeners called `ws` or `wss` have it anyway."),
    ] = None
    proxy_protocol: Annotated[
        ProxyProtocol | None, Meta(description="A proxy in front of the listener; without it clients connect directly.")
    ] = None


class Auth(Section, frozen=True, kw_only=True):
    """Who may connect, and what clients may do. Changed files are read again; who is no user any more is let go."""

    users_file: Annotated[
        Path | None,
        Meta(
            description="File of user names and password hashes that `weft user add` writes. Without it no password "
            "is right."
        ),
    ] = None
    acl_file: Annotated[
        Path | None,
        Meta(
            description="File of who may read and write which topics, in the format of Mosquitto's: `user`, `topic` "
            "and `pattern` lines with `read`, `write`, `readwrite` or `deny`. What it does not grant is refused. "
            "Without it everyone who is let in may do everything."
        ),
    ] = None
    refused_publish: Annotated[
        RefusedPublish,
        Meta(
            description="What happens when a client of MQTT 3.1.1 publishes at QoS 1 or 2 what is refused. That "
            "version has no reason code. Access rules, topic levels and `unrouted: refuse` refuse messages. `close` "
            "ends the connection without an acknowledgement. `acknowledge` drops and counts the message: for bridges "
            "and clients with a queue, which would send it again and again. MQTT 5.0 clients get the reason code."
        ),
    ] = "close"


class Http(Section, frozen=True, kw_only=True):
    """The node's own pages: status at `/`, JSON at `/status`, metrics at `/metrics`, `/healthz` and `/readyz`."""

    bind: Annotated[Bind, Meta(description="Address and port of the status page. Port 0 takes any free port.")] = (
        "127.0.0.1:8080"
    )
    anonymous: Annotated[
        Anonymous,
        Meta(
            description="Who may read the pages (names and counts, no messages): `loopback` only this machine, "
            "`allowed_beyond_loopback` everyone."
        ),
    ] = "loopback"
