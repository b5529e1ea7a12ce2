"""Listeners of an edge node, and the clients that they admit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, field

from weft.config.units import (
    Anonymous,
    Bind,
    Count,
    Duration,
    Hosts,
    Listen,
    ListenerAnonymous,
    MiB,
    Networks,
    Path,
    RefusedPublish,
    Section,
    Size,
)

# JSON Web Tokens that a hub takes from an issuer (OpenID Connect), beside tokens of its own.

Claim = Annotated[str, Meta(min_length=1, max_length=128)]
"""Name of a claim, or names with dots between them for one inside others."""
Grants = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=144)], ...], Meta(min_length=1, max_length=64)]


class Jwt(Section, frozen=True, kw_only=True):
    """JSON Web Tokens of one issuer, for edges and readers. Their keys are read again while the hub runs."""

    issuer: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=512,
            examples=["https://login.example.com/realms/plant"],
            description="Issuer of the tokens: their claim `iss`, letter by letter.",
        ),
    ]
    audience: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=512,
            description="Name of the hub at the issuer. The claim `aud` has to have it, so that tokens for other "
            "services are refused here.",
        ),
    ]
    jwks_url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^/@\s]+(/\S*)?$", max_length=2048)] | None,
        Meta(
            examples=["https://login.example.com/realms/plant/protocol/openid-connect/certs"],
            description="URL of the issuer's key set, which its OpenID configuration calls `jwks_uri`. `https`; "
            "`http` only on this machine. Redirects are not followed. Either this or `jwks_file`.",
        ),
    ] = None
    jwks_file: Annotated[
        Path | None, Meta(description="File with the issuer's key set (JWKS), for a hub that cannot reach the issuer.")
    ] = None
    ca_file: Annotated[
        Path | None,
        Meta(
            description="PEM file with the authorities that sign the certificate of `jwks_url`. Unset: those of the "
            "system."
        ),
    ] = None
    algorithms: Annotated[
        tuple[Literal["RS256", "ES256", "EdDSA"], ...],
        Meta(
            min_length=1,
            max_length=3,
            description="Algorithms of signatures. `EdDSA` is with Ed25519. Tokens of others are refused, whatever key "
            "they name.",
        ),
    ] = ("RS256", "ES256", "EdDSA")
    tenant_claim: Annotated[
        Claim | None, Meta(description="Claim with the tenant. Unset: all tokens are for `tenant`.")
    ] = None
    tenant: Annotated[
        Annotated[str, Meta(min_length=1)], Meta(description="Tenant of all tokens, without `tenant_claim`.")
    ] = "default"
    rights_claim: Annotated[
        Claim,
        Meta(
            examples=["realm_access.roles"],
            description="Claim with the rights: a list, or words with spaces between them. A dot leads into a claim "
            "inside another. Words that the hub does not know are ignored.",
        ),
    ] = "scope"
    roles: Annotated[
        Annotated[dict[str, Grants], Meta(max_length=256)] | None,
        Meta(
            description="Words of `rights_claim`, each with the rights that it gives. These are grants such as "
            "`read:press-*`, scopes of tokens such as `reader`, or roles such as `operator`. Unset: the words of the "
            "claim are such rights themselves. Roles, and rights beyond the tenant (`admin`, `status`, `metrics`, "
            "`acts`), need a line here."
        ),
    ] = None
    edge_claim: Annotated[
        Claim,
        Meta(description="Claim with the name of the edge, for tokens with the right `write` or the scope `edge`."),
    ] = "sub"
    leeway_s: Annotated[
        Duration,
        Meta(
            ge=0,
            le=300,
            description="Time by which the clocks of issuer and hub may differ. A token counts so long beyond its end "
            "and before its begin.",
        ),
    ] = field(default=30.0, name="leeway")
    refresh_s: Annotated[
        Duration, Meta(ge=1, le=86_400, description="How often the key set is read without a reason.")
    ] = field(default=900.0, name="refresh")
    unknown_key_s: Annotated[
        Duration,
        Meta(
            ge=0.1,
            le=3600,
            description="How often at most it is read because a token names a key that it does not have. After a "
            "failed attempt it is tried again as often.",
        ),
    ] = field(default=10.0, name="unknown_key")
    keep_s: Annotated[
        Duration,
        Meta(
            ge=60,
            le=30 * 86_400,
            description="Time for which the keys count after they were last read. Then the hub accepts no token of "
            "the issuer until it has read them again.",
        ),
    ] = field(default=86_400.0, name="keep")


class Tls(Section, frozen=True, kw_only=True):
    """TLS of a listener. The files are read again when they change; connections stay."""

    certificate: Annotated[
        Path, Meta(description="PEM file with the listener's certificate, followed by the chain up to its authority.")
    ]
    key: Annotated[
        Path,
        Meta(
            description="PEM file with the certificate's key, not encrypted. Only the node's user may be able to "
            "read it."
        ),
    ]
    client_ca: Annotated[
        Path | None,
        Meta(
            description="PEM file with the authorities that sign client certificates. The certificate's common "
            "name is the user name, and no password is needed. Unset: clients need no certificate."
        ),
    ] = None
    crl_file: Annotated[
        Path | None,
        Meta(
            description="PEM file with a revocation list of each authority in `client_ca`. Certificates in it are "
            "refused; so are all certificates of an authority whose list is missing or out of date. Unset: a "
            "certificate counts until it expires."
        ),
    ] = None
    client_certificate: Annotated[
        Literal["required", "optional"],
        Meta(
            description="With `client_ca`: `required` refuses clients without a certificate, `optional` lets them "
            "authenticate otherwise."
        ),
    ] = "required"


class CertificateReader(Section, frozen=True, kw_only=True):
    """Rights of people and programs whose client certificate has a name, or is of a unit."""

    rights: Annotated[
        Grants,
        Meta(
            examples=[["viewer"]],
            description="Grants such as `read:press-*`, scopes of tokens such as `reader`, or roles such as `viewer`. "
            "`admin` reaches all tenants. None may write or relay: links are for certificates of edges.",
        ),
    ]
    tenant: Annotated[Annotated[str, Meta(min_length=1)], Meta(description="Tenant of the rights.")] = "default"


class HubTls(Section, frozen=True, kw_only=True):
    """TLS of a hub, for links and readers. The files are read again when they change; links stay."""

    certificate: Annotated[
        Path, Meta(description="PEM file with the hub's certificate, followed by the chain up to its authority.")
    ]
    key: Annotated[
        Path,
        Meta(
            description="PEM file with the certificate's key, not encrypted. Only the hub's user may be able to "
            "read it."
        ),
    ]
    client_ca: Annotated[
        Path | None,
        Meta(
            description="PEM file with the authorities that sign certificates of edges. The certificate's common name "
            "is the edge, or tenant, slash and edge, and the link needs no token. Unset: edges show no certificate."
        ),
    ] = None
    crl_file: Annotated[
        Path | None,
        Meta(
            description="PEM file with a revocation list of each authority in `client_ca`. Certificates in it are "
            "refused, and their open links end. So are all certificates of an authority whose list is missing or out "
            "of date. Unset: a certificate counts until it expires."
        ),
    ] = None
    client_certificate: Annotated[
        Literal["required", "optional"],
        Meta(
            description="With `client_ca`: `required` refuses links without a certificate, also those with a token. "
            "`optional` takes either. Readers and probes need none."
        ),
    ] = "required"
    readers: Annotated[
        Annotated[dict[str, CertificateReader], Meta(max_length=256)] | None,
        Meta(
            examples=[{"OU=operators": {"rights": ["operator"]}}],
            description="People and programs with certificates of `client_ca`, each with the rights at the API: "
            "`CN=mara` for a common name, `OU=operators` for an organisational unit. A common name goes before a "
            "unit, and a token before both. Unset: readers need a token.",
        ),
    ] = None
    half_open: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Maximum number of connections whose TLS handshake is not complete. Above it, the address "
            "with most such connections loses the oldest.",
        ),
    ] = 1024
    connect_timeout_s: Annotated[
        Duration, Meta(ge=0.1, le=60, description="Maximum time of a TLS handshake, from accepting its connection.")
    ] = field(default=10.0, name="connect_timeout")
    connection_rate: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Maximum rate of new connections with TLS from one address, per second: each handshake costs "
            "the processor about a millisecond. Connections from this machine are exempt.",
        ),
    ] = 200
    connection_burst: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Number of such connections that one address may open at once before the rate applies.",
        ),
    ] = 2_000


class WebSocket(Section, frozen=True, kw_only=True):
    """MQTT over WebSocket, for browsers and for networks that pass only HTTP."""

    path: Annotated[str, Meta(description="Path of the WebSocket URL.")] = "/mqtt"
    origins: Annotated[
        tuple[str, ...] | None,
        Meta(
            description='Origins of web pages that may connect, such as `https://dash.example.com`; `"*"` for '
            "all. Unset: only pages of the listener's own scheme, host and port, and on loopback only under an address "
            "or `localhost`. Clients other than browsers send no origin and are not checked."
        ),
    ] = None


class ProxyProtocol(Section, frozen=True, kw_only=True):
    """Connections from a proxy that names the client (PROXY protocol, version 1 or 2)."""

    trusted: Annotated[
        Networks,
        Meta(
            description="Address or network of the proxy, or a list of them: `192.0.2.0/28`. Connections from "
            "elsewhere, and connections without a PROXY header, are refused."
        ),
    ]


ListenerProtocol = Literal["mqtt", "amqp", "http"]
_PROTOCOLS: dict[str, ListenerProtocol] = {"amqp": "amqp", "amqps": "amqp", "http": "http", "https": "http"}
"""Protocols of listeners by name; all other names are MQTT's."""
TLS_NAMES = ("mqtts", "wss", "amqps", "https")
"""Names of listeners that must have TLS."""
_PORTS: dict[tuple[ListenerProtocol, bool], int] = {
    ("mqtt", False): 1883,
    ("mqtt", True): 8883,
    ("amqp", False): 5672,
    ("amqp", True): 5671,
    ("http", False): 8081,
    ("http", True): 8443,
}
"""(protocol, with TLS) -> port of a listener without `bind`."""


class Listener(Section, frozen=True, kw_only=True):
    """A listener for devices: MQTT (3.1, 3.1.1 and 5.0, with `websocket` over WebSocket), AMQP (0-9-1 and 1.0), or
    HTTP."""

    protocol: Annotated[
        ListenerProtocol | None,
        Meta(
            description="Protocol of its clients. Unset: `amqp` for listeners named `amqp` and `amqps`, `http` for "
            "`http` and `https`, `mqtt` for all others."
        ),
    ] = None
    bind: Annotated[
        Listen | None,
        Meta(
            description="Address and port, or `unix:` and the path of a unix socket. The socket is open to the file's "
            "owner and group. Port 0 picks any free port. Unset: 127.0.0.1 and port 1883 for MQTT, 5672 for AMQP, "
            "8081 for HTTP; with `tls` 8883, 5671 and 8443."
        ),
    ] = None
    anonymous: Annotated[
        ListenerAnonymous,
        Meta(
            description="Who may connect without a user name. `never`: no client. `loopback`: clients on this "
            "machine. `allowed_beyond_loopback`: every client that reaches the port. Clients of a "
            "proxy without the PROXY protocol count as the proxy."
        ),
    ] = "loopback"
    tls: Annotated[
        Tls | None, Meta(description="TLS; unset: plain TCP. Required for `mqtts`, `wss`, `amqps` and `https`.")
    ] = None
    websocket: Annotated[
        WebSocket | None,
        Meta(description="MQTT over WebSocket; unset: plain MQTT. Listeners named `ws` and `wss` always use it."),
    ] = None
    origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Origins of web pages that may send requests to a listener of HTTP, such as "
            '`https://dash.example.com`; `"*"` for all. Pages of the listener\'s own scheme, host and port may always, '
            "on loopback only under an address, `localhost` or a host named here. Clients other than browsers are not "
            "checked."
        ),
    ] = ()
    proxy_protocol: Annotated[
        ProxyProtocol | None,
        Meta(description="PROXY protocol of a proxy in front of the listener; unset: clients connect directly."),
    ] = None
    vhosts: Annotated[
        Annotated[dict[str, Annotated[str, Meta(max_length=1024)] | None], Meta(max_length=256)] | None,
        Meta(
            description="Virtual hosts of AMQP 0-9-1: name -> beginning of the topics of its messages, `null` for "
            "none. With `factory: plant/7`, the topics of messages in the virtual host `factory` begin with plant/7, "
            "and its exchanges and queues are its own. Unset: `/` alone, without a beginning."
        ),
    ] = None


def protocol_of(name: str, listener: Listener) -> ListenerProtocol:
    """Return the protocol of a listener's clients."""
    return listener.protocol or _PROTOCOLS.get(name, "mqtt")


def has_listener(protocol: ListenerProtocol, listeners: Mapping[str, Listener | None]) -> bool:
    """Return whether one of some listeners speaks a protocol."""
    return any(each is not None and protocol_of(name, each) == protocol for name, each in listeners.items())


def bind_of(name: str, listener: Listener) -> str:
    """Return the address of a listener, as ``bind`` writes it."""
    return listener.bind or f"127.0.0.1:{_PORTS[protocol_of(name, listener), listener.tls is not None]}"


class Auth(Section, frozen=True, kw_only=True):
    """Authentication and access rules. Changed files are read again; clients whose user is gone are disconnected."""

    users_file: Annotated[
        Path | None,
        Meta(
            description="File of user names and password hashes, written by `weft user add`. Without it, every "
            "password is wrong."
        ),
    ] = None
    acl_file: Annotated[
        Path | None,
        Meta(
            description="File that grants access to topics, in Mosquitto's format: `user`, `topic` and `pattern` "
            "lines with `read`, `write`, `readwrite` or `deny`. `queue` lines grant access to queues and exchanges of "
            "AMQP (docs/reference/access-rules.md). Access that it does not grant is "
            "refused. Without it, every client has access to every topic and queue."
        ),
    ] = None
    refused_publish: Annotated[
        RefusedPublish,
        Meta(
            description="Answer to a refused publish at QoS 1 or 2 from an MQTT 3.1.1 client, which cannot "
            "receive a reason code. Access rules, topic levels and `unrouted: refuse` refuse "
            "messages. `close` closes the connection without an acknowledgement. `acknowledge` drops "
            "and counts the message: for bridges and clients with a queue, which would otherwise send "
            "it again and again. MQTT 5.0 clients get the reason code."
        ),
    ] = "close"
    remember_passwords: Annotated[
        bool,
        Meta(
            description="Whether correct passwords are remembered over restarts, so that known devices are admitted "
            "at once, whatever a flood of wrong passwords does. `known-passwords.json` in the data directory holds "
            "keyed hashes and their key: who reads that file can try passwords faster than `users_file` allows."
        ),
    ] = True


class Http(Section, frozen=True, kw_only=True):
    """The node's own pages: for people at `/`, JSON at `/status`, metrics at `/metrics`, `/healthz` and `/readyz`."""

    bind: Annotated[Bind, Meta(description="Address and port of the status page. Port 0 picks any free port.")] = (
        "127.0.0.1:8080"
    )
    anonymous: Annotated[
        Anonymous,
        Meta(
            description="Who may read the pages with names and counts. `loopback`: clients on this machine. "
            "`allowed_beyond_loopback`: every client that reaches the port. Messages are shown to the users of "
            "`auth.users_file` only, by their access rules; without that file, on this machine only."
        ),
    ] = "loopback"
    hosts: Annotated[
        Hosts | None,
        Meta(
            description="Names under which the pages may be called, beside addresses and `localhost`. Requests under "
            "other names are refused, because pages of strangers in a browser could come under a name of their own "
            "(DNS rebinding). Unset: no names on loopback, every name elsewhere."
        ),
    ] = None


# Settings of exchanges and queues.


class QueueBounds(Section, frozen=True, kw_only=True):
    """Bounds on exchanges and queues, which AMQP clients declare. Beyond them clients are refused. One user may have
    `limits.user_share` of each."""

    queues: Annotated[Count, Meta(le=10_000_000, description="Maximum number of queues.")] = 65_536
    exchanges: Annotated[Count, Meta(le=1_000_000, description="Maximum number of exchanges.")] = 4_096
    bindings: Annotated[
        Count,
        Meta(
            le=10_000_000,
            description="Maximum number of bindings. One counts one more for each 256 bytes of its names, key and "
            "arguments, each 8 words of its key and each 4 headers. With `#` before the end of its key it counts 16 "
            "more.",
        ),
    ] = 262_144
    match_cost: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Maximum number of steps for finding a message's queues that uncommon bindings may cost, of "
            "all users together. Keys with more than 4 words, several `*`, or `#` before the end are uncommon. Each "
            "combination of words, `*` and `#` costs steps. So do bindings by several headers, at the one of them "
            "that fewest others share. Further ones are refused.",
        ),
    ] = 32_768
    size_bytes: Annotated[
        Annotated[Size, Meta(ge=1 * MiB)] | None,
        Meta(
            description="Maximum size of the messages in queues: their payloads, and 128 bytes each. They are in the "
            "node's log. Above it, queues accept no more: publishers that ask for confirms get a nack. Unset: a "
            "quarter of `disk.budget`."
        ),
    ] = field(default=None, name="size")
    unacknowledged: Annotated[
        Count,
        Meta(
            le=100_000_000,
            description="Maximum number of messages that consumers have and did not acknowledge. Above it, consumers "
            "get no more.",
        ),
    ] = 262_144
    consumers: Annotated[Count, Meta(le=10_000_000, description="Maximum number of consumers of queues.")] = 65_536
    channels: Annotated[
        Count,
        Meta(le=10_000_000, description="Maximum number of AMQP channels; one connection may have 2,047 of them."),
    ] = 65_536
