"""Mistakes about a link: the node's status and its log say them in words, link by link."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from examples.demo.fabric import free_port
from tests.support.waiting import PATIENCE_S, wait_until
from tests.weft.mistakes import place as surroundings
from tests.weft.mistakes.place import Place, made
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect


class Link(NamedTuple):
    """One link with a mistake in it, and what its status says."""

    did: str
    name: str
    settings: str
    state: str
    error: str
    token: str | None = None
    """What is in the link's token file; None where the link names none."""


HUB = "to: 'http://127.0.0.1:<hub port>'"
LINKS = [
    Link(
        "no token where one is wanted",
        "none",
        HUB,
        "refused",
        "http://127.0.0.1:<hub port>: the hub requires a token (401) and the link has none. Set the link's token_file",
    ),
    Link(
        "a token of nowhere",
        "wrong",
        HUB,
        "refused",
        "http://127.0.0.1:<hub port>: the hub does not accept the token (401). It is mistyped, revoked, or "
        "another hub's: create one on this hub",
        token="mistyped-token",
    ),
    Link(
        "a token that was revoked",
        "revoked",
        HUB,
        "refused",
        "http://127.0.0.1:<hub port>: the hub does not accept the token (401). It is mistyped, revoked, or "
        "another hub's: create one on this hub",
        token="<revoked>",
    ),
    Link(
        "a reader's token",
        "reader",
        HUB,
        "refused",
        "http://127.0.0.1:<hub port>: the hub does not accept the token for links, or wants a client certificate "
        "as well (403). Create one on the hub with `--scope edge`, or set the link's certificate and key",
        token="<bi>",
    ),
    Link(
        "another edge's token",
        "other",
        HUB,
        "refused",
        "the token 'other' is not for edge press-shop-7 of tenant default; use this edge's own token, or "
        "set node and tenant to those of the token",
        token="<other>",
    ),
    Link(
        "an empty token file",
        "empty",
        HUB,
        "waiting",
        "token_file <edge>/empty is empty: expected one token on one line. Write it there",
        token="",
    ),
    Link(
        "words around the token",
        "words",
        HUB,
        "waiting",
        "token_file <edge>/words: expected one token on one line, got several words. Keep the token alone",
        token="token: among-words",
    ),
    Link(
        "https to a port without TLS",
        "https",
        "to: 'https://127.0.0.1:<hub port>'",
        "waiting",
        "https://127.0.0.1:<hub port>: the port does not speak TLS (<reason>). Write http:// if the hub is without TLS",
    ),
    Link(
        "http to a port with TLS",
        "http",
        "to: 'http://127.0.0.1:<tls port>'",
        "waiting",
        "http://127.0.0.1:<tls port>: the server closed the connection unanswered. Write https:// if it speaks TLS, or "
        "check the port",
    ),
    Link(
        "a hub whose authority is not known",
        "untrusted",
        "to: 'https://127.0.0.1:<tls port>'",
        "waiting",
        "https://127.0.0.1:<tls port>: the hub's certificate is refused (self-signed certificate). Name the "
        "certificate of its authority in the link's `ca_file`",
    ),
    Link(
        "a status page in place of the hub",
        "page",
        "to: 'http://127.0.0.1:<node http>'",
        "refused",
        "http://127.0.0.1:<node http>: no hub answers at /v1/link (404). Check the link's `to`",
    ),
    Link(
        "an MQTT port in place of the hub",
        "mqtt",
        "to: 'http://127.0.0.1:<node mqtt>'",
        "waiting",
        "http://127.0.0.1:<node mqtt>: the server closed the connection unanswered. Write https:// if it speaks TLS, "
        "or check the port",
    ),
    Link(
        "a hub that does not run",
        "down",
        "to: 'http://127.0.0.1:1'",
        "waiting",
        "http://127.0.0.1:1: cannot connect (Connection refused). Check that the hub runs, and its host and port",
    ),
    Link(
        "a token where none is wanted",
        "open",
        "to: 'http://127.0.0.1:<open port>'",
        "connected",
        "",
        token="superfluous-token",
    ),
]
EDGE = """node: press-shop-7
data_dir: data
http: {{bind: '127.0.0.1:{http}'}}
listeners: {{mqtt: null}}
streams: {{{streams}}}
disk: {{budget: 64MiB}}
links:
"""


class Page(BaseHTTPRequestHandler):
    """Speaks TLS and HTTP, and is no hub."""


@contextmanager
def server_with_tls(folder: Path) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "long.crt", folder / "long.key")
    server = HTTPServer(("127.0.0.1", 0), Page)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # clients that speak no TLS
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Edge(NamedTuple):
    folder: Path
    place: Place
    links: dict[str, Any]
    log: str


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """A node with all these links, and what it says of them."""
    files = tmp_path_factory.mktemp("files")
    with made() as place, surroundings.running(place):
        surroundings.files_of(place, files)
        with server_with_tls(files) as tls_port:
            hub_port, http = free_port(), free_port()
            place.name("<tls port>", tls_port)
            place.name("<open port>", hub_port)
            hub_folder = Path(place.filled("<hub>", files))
            for token in ("revoked", "other", "bi"):
                place.name(f"<{token}>", (hub_folder / f"{token}.token").read_text())
            settings = f"store: store\nprocesses: 1\nlisten: 127.0.0.1:{hub_port}\ntables: null\n"
            open_hub = place.folder({"hub.yaml": settings})
            # A stream for each link: two that brought one hub the same streams would be refused.
            streams = ", ".join(f"of-{link.name}: {{from: '{link.name}/#'}}" for link in LINKS)
            text, tokens = EDGE.format(http=http, streams=streams), dict[str, str | bytes]()
            for link in LINKS:
                file = f", token_file: {link.name}" if link.token is not None else ""
                text += f"  {link.name}: {{{link.settings}{file}, streams: [of-{link.name}]}}\n"
                tokens |= {f"{link.name}@0600": link.token} if link.token is not None else {}
            folder = place.folder({"edge.yaml": text, **tokens})
            with place.serving("hub", open_hub), place.serving("edge", folder):
                wait_until(lambda: all(map(is_reported, links_of(http).values())))
                place.name("<edge>", folder)
                yield Edge(folder, place, links_of(http), Path(f"{folder}.stderr").read_text())


def links_of(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=PATIENCE_S) as answer:
        links: dict[str, Any] = json.load(answer)["links"]
        return links


def is_reported(link: dict[str, Any]) -> bool:
    return bool(link["last_error"]) or link["state"] == "connected"


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.did.replace(" ", "-"))
def test_a_link_s_mistake_stands_in_status_and_log(link: Link, edge: Edge) -> None:
    said = edge.place.emptied(edge.links[link.name]["last_error"], edge.folder).replace("<dir>", "<edge>")
    assert without_openssl(said) == link.error
    assert edge.links[link.name]["state"] in (link.state, "connecting")
    if link.error:
        assert edge.links[link.name]["last_error"] in edge.log
    if link.token:
        assert edge.place.filled(link.token, edge.folder) not in edge.log


def test_a_person_reads_it_in_the_status(edge: Edge) -> None:
    said = edge.place.run(["edge", "status", "edge.yaml"], edge.folder)
    assert said.exit_status == 0
    assert "the hub requires a token (401) and the link has none. Set the link's token_file" in said.stdout


def without_openssl(said: str) -> str:
    """OpenSSL's words for the same thing differ between its releases."""
    for reason in ("wrong version number", "record layer failure", "packet length too long", "http request"):
        said = said.replace(f"({reason})", "(<reason>)")
    return said


def test_every_sentence_is_short() -> None:
    for link in LINKS:
        assert all(len(sentence.split()) <= 27 for sentence in link.error.split(". "))


# --- What a node's log says of connections that never become MQTT clients: what they spoke, and never `None`


CLIENTS = [
    (
        "a browser at the MQTT port",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "client without a CONNECT at <client>: it speaks HTTP and this is a port for MQTT. The status page is at "
        "`http.bind`, MQTT over WebSocket at `ws`",
    ),
    (
        "TLS to a listener without it",
        bytes.fromhex("16030100c8010000c40303") + bytes(100),
        "client without a CONNECT at <client>: it speaks TLS and this listener has none. Connect without TLS, or give "
        "the listener `tls`",
    ),
    (
        "a balancer's PROXY header that is not expected",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 5 1883\r\n" + encode(Connect("press-7" * 10)),
        "client without a CONNECT at <client>: it sends a PROXY header and this listener expects none. Set "
        "`proxy_protocol`, or connect directly",
    ),
    ("bytes of no protocol", b"\xff\xff", "client without a CONNECT at <client>: "),
    ("a probe that says nothing", b"", "client without a CONNECT at <client>: connection lost (closed by the client)"),
    ("a packet before CONNECT", bytes.fromhex("c000"), "client without a CONNECT at <client>: "),
]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with made() as found, surroundings.running(found):
        yield found


@pytest.mark.parametrize(("did", "data", "says"), CLIENTS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_connection_that_is_no_client(did: str, data: bytes, says: str, place: Place) -> None:
    log = Path(place.filled("<node>.stderr", Path()))
    with socket.create_connection(("127.0.0.1", int(place.filled("<node mqtt>", Path())))) as client:
        name = ":".join(map(str, client.getsockname()))
        client.sendall(data)
        if data:
            client.settimeout(PATIENCE_S)
            while client.recv(100):
                pass
    wait_until(lambda: name in log.read_text())
    (line,) = [line for line in log.read_text().splitlines() if name in line]
    assert f"closed MQTT {says}".replace("<client>", name) in line
    assert "None" not in line


def test_a_client_that_is_refused_is_named(place: Place) -> None:
    log = Path(place.filled("<node>.stderr", Path()))
    with socket.create_connection(("127.0.0.1", int(place.filled("<node mqtt>", Path())))) as client:
        client.sendall(encode(Connect("press-7", username="anna", password=b"wrong")))
        client.settimeout(PATIENCE_S)
        assert client.recv(100)
    wait_until(lambda: "wrong password or no such user" in log.read_text())
    lines = [line for line in log.read_text().splitlines() if "wrong password" in line]
    (line,) = [line for line in lines if "weft.events" not in line]
    assert re.search(r"closed MQTT client 'press-7' at 127\.0\.0\.1:\d+: wrong password or no such user: 'anna'", line)
