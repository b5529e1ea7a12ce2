"""The client of the API: it follows the document, and reads a real hub."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
import socket
import ssl
import stat
import sys
import threading
import typing
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from click.testing import CliRunner, Result

from docs.tools.commands import contexts
from tests.cloud_hub.http.test_application import deliver, records
from tests.cloud_hub.live import EdgeLog, running_hub
from tests.support.certificates import Authority
from tests.support.processes import weft
from tests.support.tokens import create_token
from tests.support.waiting import PATIENCE_S
from weft.cli import cli
from weft.client import Client, Fetched, HubError, HubRefusal, HubUnreachable, Rows, logins, pages
from weft.client.aio import AsyncClient
from weft.client.aio import pages as each_page
from weft.cloud_hub.facts.tenants import Quotas
from weft.cloud_hub.hub import Hub
from weft.commands import hub_tenants
from weft.commands.credentials import whoami
from weft.config.payload_schema.model import PayloadSchema, SchemaField
from weft.hub_api.operation import EVENTS, Operation, Parameter
from weft.hub_api.operations import OPERATIONS
from weft.hub_api.rights import Scope
from weft.hub_api.streams import StreamsAnswer
from weft.hub_api.tokens import HashedToken, WhoAmI
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

EDGE = LinkIdentity("acme", "press-1", 0xABC, "test")
OF_BODY = {
    "edges": ["press-1"],
    "expires_s": 60.0,
    "qos": 1,
    "redirect": True,
    "bytes_max": 1 << 20,
    "scope": "reader",
    "end_oldest": True,
    "shard": 1,
    "force": True,
    "state": "running",
    "paused": True,
    "schema": PayloadSchema(fields={"t": SchemaField(type_="float")}),
    "compatibility": "full",
    "tokens": [HashedToken("press-1", "0" * 64, Scope.EDGE, edge="press-1")],
    **dict.fromkeys(("batch", "records", "seconds", "rate", "lag", "idle_seconds", "every_seconds"), 7),
}
"""Arguments that are no text."""
OF_QUOTAS = dict.fromkeys((*Quotas.__struct_fields__, "version"), 40)
ASKED = [each for each in OPERATIONS if each.content_type != EVENTS]
"""The client keeps no connection open, so it listens to no events."""
FOR_PEOPLE = {("rows", "format")}
"""Parameters that the client leaves out: it reads Arrow."""


def asked_of(operation: Operation) -> list[Parameter]:
    return [each for each in operation.parameters if (operation.name, each.name) not in FOR_PEOPLE]


@pytest.mark.parametrize("operation", ASKED, ids=lambda each: each.name)
def test_the_client_follows_the_document(operation: Operation) -> None:
    method = getattr(Client, operation.name, None)
    assert method is not None, f"give weft.client.Client the method {operation.name}"
    taken = inspect.signature(method).parameters.keys() - {"self"}
    described = {each.name.lower().replace("-", "_") for each in asked_of(operation)}
    if operation.body is not None:
        # One argument is both: text, or bytes that travel as base64.
        described |= {field.name for field in msgspec.structs.fields(operation.body)} - {"payload_base64"}
    assert taken == described, f"give weft.client.Client.{operation.name} the parameters of the operation"
    (returned,) = typing.get_args(typing.get_type_hints(method)["return"])
    assert returned == (Rows if operation.answer is None else operation.answer)


class Asked(Exception):
    """The request that a client would send."""


class Recorder(Client):
    """A client that raises what it would ask."""

    def fetch(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str | None = None,
    ) -> Fetched:
        raise Asked(method or ("GET" if body is None else "POST"), urlsplit(path), body, dict(headers or {}))


@pytest.mark.parametrize("operation", ASKED, ids=lambda each: each.name)
def test_the_client_asks_what_the_document_says(operation: Operation) -> None:
    ask = getattr(Recorder("http://hub"), operation.name)
    numbers = (
        OF_QUOTAS if operation.name == "set_tenant" else OF_BODY | ({"limit": 5} if operation.name == "sql" else {})
    )
    given = {name: numbers.get(name, "a/b?c") for name in inspect.signature(ask).parameters}
    with pytest.raises(Asked) as asked:
        ask(**given)
    method, url, body, headers = asked.value.args
    assert (method, url.path) == (operation.method.upper(), re.sub(r"\{\w+\}", "a%2Fb%3Fc", operation.path))
    of = {place: {each.name for each in asked_of(operation) if each.place == place} for place in ("query", "header")}
    assert parse_qs(url.query).keys() == of["query"]
    assert headers.keys() == of["header"]
    if operation.body is None:
        assert body is None
    else:  # the type of the hub's own handler, which forbids what it does not know
        msgspec.json.decode(body, type=operation.body)
        names = msgspec.structs.fields(operation.body)
        assert {each.encode_name for each in names} - {"payload_base64"} == msgspec.json.decode(body).keys()


def test_the_client_offers_nothing_else() -> None:
    offered = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert offered == {each.name for each in ASKED} | {"fetch", "all_records", "all_rows", "opened", "tail"}


@pytest.mark.slow
async def test_the_client_reads_a_hub_and_tells_its_refusals(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.yaml")
    tokens = {name: create_token(path, name, Scope(name), "acme") for name in ("reader", "publish", "pull")}
    link = create_token(path, "press-1", Scope.EDGE, "acme", "press-1")
    log = EdgeLog()
    log.append(*records(0, [b"%d" % n for n in range(1500)]))
    async with running_hub(MemoryStore(), shards=1, tokens=path) as hub:
        await deliver(hub, log, 1500, EDGE, link)
        await asyncio.to_thread(read, hub, tokens)
        await read_without_waiting(hub, tokens["reader"])
        await asyncio.to_thread(order, hub, tokens)
        await asyncio.to_thread(rotate, hub, tokens, tmp_path / "token")
        await asyncio.to_thread(show, hub, tmp_path)


def read(hub: Hub, tokens: dict[str, str]) -> None:
    reader = Client(hub.url, token=tokens["reader"])
    (stream,) = reader.streams().streams
    shard = int(next(iter(stream.next_offset)))
    assert (stream.stream, stream.records, reader.stream("telemetry").records) == ("telemetry", 1500, 1500)
    assert [record.payload for record in reader.all_records("telemetry", shard)] == [str(n) for n in range(1500)]
    assert [edge.edge for page in pages(reader.edges) for edge in page.edges] == ["press-1"]
    assert [lane.edge for page in pages(reader.lanes, "telemetry", limit=1) for lane in page.lanes] == ["press-1"]
    assert reader.completeness("telemetry").covers[0].edge == "press-1"
    assert reader.rows("telemetry", shard=shard, limit=7).next_offset == 7
    tables = list(reader.all_rows("telemetry", shard, limit=700))
    assert [each.arrow().num_rows for each in tables] == [700, 700, 100], "an answer is in memory at a time"
    offsets = list(range(1500))
    assert [n for rows in tables for n in rows.pandas()["_offset"]] == offsets
    assert [n for rows in tables for n in rows.polars()["_offset"]] == offsets
    assert [last.next_offset for last in reader.all_rows("telemetry", shard, offset=1499)] == [1500]
    assert list(reader.all_rows("telemetry", shard, offset=1500)) == []
    assert (reader.whoami().token, reader.whoami().tenant, reader.whoami().scope) == ("reader", "acme", "reader")
    assert reader.openapi()["openapi"].startswith("3.1")
    with pytest.raises(HubUnreachable, match="more than 10 bytes"):
        Client(hub.url, token=tokens["reader"], bytes_max=10).streams()
    for ask, status, word in (
        (lambda: reader.stream("nothing"), 404, "has no stream 'nothing'"),
        (lambda: reader.stream("../status"), 404, "no stream '../status'"),
        (lambda: reader.streams(tenant="other"), 403, "is for tenant acme"),
        (reader.status, 403, "has the scope reader"),
        (Client(hub.url, token="forged").whoami, 401, "no valid token"),
    ):
        assert_refused(ask, status, word)


async def read_without_waiting(hub: Hub, token: str) -> None:
    async with AsyncClient(hub.url, token=token) as reader:
        (stream,) = (await reader.streams()).streams
        shard = int(next(iter(stream.next_offset)))
        assert [lane.edge async for page in each_page(reader.lanes, "telemetry", limit=1) for lane in page.lanes] == [
            "press-1"
        ]
        assert (await reader.rows("telemetry", shard=shard, limit=7)).arrow().num_rows == 7
        found = list[int]()
        async with contextlib.aclosing(reader.tail("telemetry", position=f"{shard}:0")) as tail:
            async for event in tail:
                found += [record.offset for record in event.records]
                if len(found) == 1500:
                    break
        assert found == list(range(1500))
        with pytest.raises(HubRefusal, match="has no stream 'nothing'") as refusal:
            await reader.stream("nothing")
        assert (refusal.value.status, bool(refusal.value.advice)) == (404, True)
    async with AsyncClient(hub.url, token=token, bytes_max=10) as reader:
        with pytest.raises(HubUnreachable, match="more than 10 bytes"):
            await reader.streams()


def order(hub: Hub, tokens: dict[str, str]) -> None:
    publisher, puller = Client(hub.url, token=tokens["publish"]), Client(hub.url, token=tokens["pull"])
    (published,) = publisher.publish("down/recipe", b"\xff", edge="press-1", idempotency_key="k").messages
    assert published.number == 0
    assert [each.number for each in publisher.messages("press-1").waiting or ()] == [0]
    assert_refused(lambda: publisher.publish("down/#", edge="press-1"), 400, "wildcard")
    asked = puller.pull("press-1", "vibration", "2026-01-01T10:00:00Z", "2026-01-01T10:15:00Z", bytes_max=1 << 20)
    assert (asked.tenant, asked.edge, asked.from_[:19]) == ("acme", "press-1", "2026-01-01T10:00:00")
    assert [each.id for each in puller.pulls(edge="press-1").pulls] == [asked.id]
    assert puller.cancel_pull(asked.id).state == "cancelled"
    assert_refused(lambda: puller.cancel_pull("none/such"), 404, "pull")


def rotate(hub: Hub, tokens: dict[str, str], file: Path) -> None:
    client = Client(hub.url, token_file=str(file))
    with pytest.raises(FileNotFoundError):
        client.whoami()
    for name in ("reader", "pull"):
        file.write_text(tokens[name] + "\n")
        assert client.whoami().token == name


def show(hub: Hub, folder: Path) -> None:
    """The command shows what the token of ``rotate`` opens, and refuses a forged one in the hub's words."""
    configuration, token = folder / "hub.yaml", folder / "token"
    configuration.write_text(f"listen: {hub.url.removeprefix('http://')}\nstore: {folder}/store\n")
    words = [str(configuration), "--token-file", str(token)]
    done = CliRunner().invoke(whoami, words)
    reports = [
        "token pull scope pull tenant acme edge none until none certificate none rights pull:*",
        "link_protocol 1",
    ]
    assert done.exit_code == 0
    said = " ".join(done.output.split())
    assert (said.startswith(reports[0]), said.endswith(reports[1])) == (True, True), said
    token.write_text("forged")
    assert "401 Unauthorized: no valid token" in CliRunner().invoke(whoami, words).output


def test_a_package_that_is_missing_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ModuleNotFoundError, match="python -m pip install polars"):
        Rows(b"", None, None, 0).polars()


def assert_refused(ask: Callable[[], object], status: int, word: str) -> None:
    with pytest.raises(HubRefusal, match=word) as refusal:
        ask()
    assert (refusal.value.status, bool(refusal.value.advice)) == (status, True)


def test_nobody_at_the_address_is_said() -> None:
    with pytest.raises(HubUnreachable, match=r"http://127\.0\.0\.1:1/v1/whoami does not answer"):
        Client("http://127.0.0.1:1").whoami()


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"url": "hub.example.com"}, "is not an address of a hub"),
        ({"url": "http://hub", "token": "a", "token_file": "b"}, "set only one"),
        ({"url": "http://hub", "token": "secret\r\nX: y"}, "pass the token alone"),
        ({"url": "https://hub", "ca_file": "/nonexistent.pem"}, "nonexistent"),
        ({"url": "https://hub", "ca_file": __file__}, "holds no certificate"),
    ],
)
def test_what_no_client_can_be_made_of_is_said(given: dict[str, str], word: str) -> None:
    with pytest.raises((OSError, ValueError), match=word) as refused:
        Client(**given)  # type: ignore[arg-type]  # mypy checks each argument against all types
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{}", "ended 88 bytes before"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", "does not answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "does not answer like a hub"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xff", "does not answer like a hub"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not answer"),
        (b"", "does not answer"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "302 Found"),
        (b"HTTP/1.1 502 Bad Gateway\r\nRetry-After: soon\r\n\r\n<html>", "502 Bad Gateway$"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "does not answer like a hub"),
    ],
)
def test_an_answer_that_is_none_is_said(answer: bytes, word: str) -> None:
    with once(answer) as client, pytest.raises(HubError, match=word):
        client.whoami()


def test_fields_of_a_later_hub_are_ignored() -> None:
    body = b'{"token": null, "scope": "anonymous", "tenant": "default", "edge": null, "later": [1]}'
    with once(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)) as client:
        assert client.whoami() == WhoAmI(token=None, scope="anonymous", tenant="default", edge=None)


def test_a_refusal_says_when_to_ask_again() -> None:
    body = b'{"detail": "too much", "advice": "wait"}'
    with once(b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\n\r\n" + body) as client, pytest.raises(HubRefusal) as got:
        client.publish("t", edge="press-1")
    assert (got.value.retry_after_s, str(got.value)) == (7, "429 Slow: too much; wait")


def test_a_list_that_stands_still_ends() -> None:
    page = StreamsAnswer(streams=[], next_after="a")
    asked = list[str | None]()

    def ask(*, after: str | None = None) -> StreamsAnswer:
        asked.append(after)
        return page

    with pytest.raises(HubUnreachable, match="does not continue after 'a'"):
        list(pages(ask))
    assert asked == [None, "a"]


@contextlib.contextmanager
def once(answer: bytes) -> Iterator[Client]:
    """Give a client of a server that says one thing, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1 << 16)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=PATIENCE_S)
        thread.join()


# --- Commands that ask a hub by its URL or by the name of a login, from a machine without its configuration


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in (logins.HUB_VARIABLE, logins.TOKEN_VARIABLE, logins.TOKEN_FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


def said(result: Result) -> str:
    return f"{result.output}{result.exception or ''}"


@pytest.mark.usefixtures("home")
async def test_a_hub_is_asked_by_its_url_a_login_or_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, log = str(home / "tokens.yaml"), EdgeLog()
    admin, publish = (create_token(tokens, name, Scope(name), "acme") for name in ("admin", "publish"))
    link = create_token(tokens, "press-1", Scope.EDGE, "acme", "press-1")
    (home / "publish.token").write_text(publish)
    log.append(*records(0, [b"{}"] * 3))
    async with running_hub(MemoryStore(), shards=2, tokens=tokens) as hub:
        await deliver(hub, log, 3, EDGE, link)
        await asyncio.to_thread(ask, hub.url, admin, home, monkeypatch)


def ask(url: str, admin: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = said(weft("hub", "status", url))
    assert "the hub requires a token. Provide one with --token-file or `weft login`" in refused
    assert "401 Unauthorized" in said(weft("login", "plant", url, answer="forged\n"))
    assert not os.path.exists(logins.path()), "what opens nothing is not kept"
    made = weft("login", "plant", f"{url}/", answer=f"{admin}\n")
    assert f"plant is {url}, as admin, tenant acme" in made.output
    assert admin not in made.output
    assert stat.S_IMODE(os.stat(logins.path()).st_mode) == 0o600
    assert json.loads(weft("login", "--json").output)["hubs"] == [
        {"name": "plant", "url": url, "has_token": True, "ca_file": None, "certificate": None}
    ]
    for named in ("plant", url):  # a URL finds the login as well
        status = weft("hub", "status", named)
        assert "1 edge: 0 connected" in said(status)
        assert "acme/press-1" in status.output
    trouble = said(weft("hub", "status", "plant", "--trouble"))
    assert "press-1" in trouble, "it has no link"
    assert "last backup" not in trouble
    (node,) = json.loads(weft("hub", "nodes", "plant", "--json").output)["nodes"]
    assert (node["state"], node["owns"]) == ("ready", [0, 1])
    assert json.loads(weft("hub", "whoami", "plant", "--json").output)["token"] == "admin"
    assert json.loads(weft("hub", "usage", "plant", "--tenant", "acme", "--json").output)["lanes"] == 1
    monkeypatch.setattr(hub_tenants, "GROWTH_AFTER_S", 0.0)
    text = weft("hub", "usage", "plant", "--tenant", "acme").output
    assert re.search(r"^received +\d+ B, 3 records since .*: .* a day$", text, re.MULTILINE), text
    assert re.search(r"^telemetry\t3\t\d+\t3\t(unknown|.* (B|KiB))$", text, re.MULTILINE), text
    acts = json.loads(weft("hub", "acts", "plant", "--json").output)["acts"]
    assert {each["by"] for each in acts} == {"a test"}, "those of the tokens"
    assert "telemetry" in weft("streams", "plant", "--tenant", "acme").output
    stored = ["hub", "publish", url, "press-1", "down/x", "{}", "--tenant", "acme"]
    assert "message 0 is stored" in weft(*stored).output
    assert "message 1 is stored" in weft(*stored, "--token-file", home / "publish.token").output
    assert "down/x" in weft("hub", "messages", "plant", "press-1", "--tenant", "acme").output
    monkeypatch.setenv(logins.HUB_VARIABLE, "plant")
    assert "3" in weft("streams", "--tenant", "acme").output.split()
    look_at_records(url)
    assert weft("login", "plant", "--forget").exit_code == 0
    monkeypatch.setenv(logins.HUB_VARIABLE, url)
    monkeypatch.setenv(logins.TOKEN_VARIABLE, admin)
    assert json.loads(weft("hub", "whoami", "--json").output)["token"] == "admin"
    monkeypatch.setenv(logins.TOKEN_FILE_VARIABLE, str(home / "publish.token"))
    assert "are both set" in said(weft("hub", "whoami"))
    monkeypatch.delenv(logins.TOKEN_VARIABLE)
    assert json.loads(weft("hub", "whoami", "--json").output)["token"] == "publish"


def look_at_records(url: str) -> None:
    tail = ["hub", "tail", "plant", "telemetry", "--tenant", "acme", "--position", "0:0,1:0", "--json"]
    lines = [json.loads(line) for line in weft(*tail, "--count", 3).output.splitlines()]
    assert [each["seq"] for each in lines] == [0, 1, 2]
    trace = ["hub", "trace", "plant", "telemetry", "--tenant", "acme"]
    found = weft(*trace, f"press-1/{lines[2]['log']}/2")
    assert f"offset 2 of shard {lines[2]['shard']}" in found.output
    assert json.loads(weft(*trace, f"{lines[2]['shard']}/2", "--json").output)["record"]["seq"] == 2
    missing = weft(*trace, f"press-1/{lines[2]['log']}/9")
    assert (missing.return_value, "it has not arrived yet" in missing.output) == (1, True)
    assert "names no record" in said(weft(*trace, "press-1/2"))
    assert "404 Not Found" in said(weft("hub", "tail", url, "nothing", "--tenant", "acme"))


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hub", "status"), "name the hub: its CONFIG on this machine, its URL, or the name of a login"),
        (("hub", "status", "plant"), "is neither a URL nor a login of"),
        (("hub", "status", "hub.example.com:8090"), "there is no such file. The URL of a hub begins with https://"),
        (("hub", "status", "https://me:secret@hub"), "contains a user or a password"),
        (("hub", "status", "ftp://hub"), "is not a URL of a hub"),
        (("login", "plant"), "give NAME and URL"),
        (("login", "Plant 1", "https://hub"), "is not a name for a hub"),
        (("login", "plant", "--forget"), "there is no login 'plant'"),
    ],
)
def test_what_names_no_hub_is_said(arguments: tuple[str, ...], message: str) -> None:
    reported = said(weft(*arguments))
    assert message in reported
    assert "secret" not in reported


@pytest.mark.usefixtures("home")
def test_a_file_of_logins_that_others_read_or_that_is_damaged_opens_nothing() -> None:
    logins.write({"plant": logins.Login("https://hub.example.com", "secret")})
    os.chmod(logins.path(), 0o644)
    assert "run chmod 600" in said(weft("hub", "status", "plant"))
    os.chmod(logins.path(), 0o600)
    Path(logins.path()).write_text('{"hubs": {"plant": {"url": "ftp://hub", "token": "secret"}}}')
    reported = said(weft("login"))
    assert "then run `weft login` again" in reported
    assert "secret" not in reported


# --- Hubs with a certificate of an own authority, and the wrong scheme: a sentence in place of OpenSSL's words


class Whose(BaseHTTPRequestHandler):
    """The answer to ``whoami``."""

    def do_GET(self) -> None:
        body = msgspec.json.encode(WhoAmI(token=None, scope="anonymous", tenant=None, edge=None))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write no log."""


class Answering(HTTPServer):
    """A server whose clients may break off."""

    def handle_error(self, *_: object) -> None:
        """Say nothing of them."""


@contextlib.contextmanager
def answering(context: ssl.SSLContext | None) -> Iterator[int]:
    with Answering(("127.0.0.1", 0), Whose) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            serving.join()


@pytest.fixture
def tls_hub(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """The port of a hub with TLS, and the file of its authority."""
    authority = Authority(tmp_path)
    shown, context = authority.sign("hub"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)
    with answering(context) as port:
        yield port, authority.path


def test_a_hub_with_its_own_authority_is_trusted_by_its_file(home: Path, tls_hub: tuple[int, str]) -> None:
    port, authority = tls_hub
    url = f"https://127.0.0.1:{port}"
    reported = said(weft("hub", "whoami", url))
    assert f"{url}/v1/whoami: the hub's certificate is refused (" in reported
    assert "Name the certificate of its authority in ca_file (`--ca-file` of commands)" in reported
    assert "is the hub running" not in reported
    assert "anonymous" in weft("hub", "whoami", url, "--ca-file", authority).output
    (home / "other").mkdir()
    assert "certificate is refused" in said(weft("hub", "whoami", url, "--ca-file", Authority(home / "other").path))
    assert weft("login", "plant", url, "--no-token", "--ca-file", authority).exit_code == 0
    assert "anonymous" in weft("hub", "whoami", "plant").output
    assert "--ca-file needs TLS" in said(weft("hub", "whoami", f"http://127.0.0.1:{port}", "--ca-file", authority))
    (home / "hub.yaml").write_text("store: store\n")
    in_vain = said(weft("hub", "whoami", str(home / "hub.yaml"), "--ca-file", authority))
    assert "--ca-file is for the URL of a hub, and " in in_vain


async def test_both_clients_say_which_scheme_to_write(tls_hub: tuple[int, str]) -> None:
    port, _ = tls_hub

    async def both(url: str) -> set[str]:
        with pytest.raises(HubUnreachable) as blocking:
            await asyncio.to_thread(Client(url).whoami)
        with pytest.raises(HubUnreachable) as awaited:
            async with AsyncClient(url) as client:
                await client.whoami()
        assert blocking.value.is_known
        assert awaited.value.is_known
        return {str(blocking.value).rpartition(". ")[2], str(awaited.value).rpartition(". ")[2]}

    assert await both(f"http://127.0.0.1:{port}") == {"Write https:// if it speaks TLS, or check the port"}
    assert len(await both(f"https://127.0.0.1:{port}")) == 1
    with answering(None) as plain:
        assert await both(f"https://127.0.0.1:{plain}") == {"Write http:// if the hub has none"}


def test_every_command_that_takes_a_token_for_a_hub_takes_its_authority() -> None:
    taking = {"--token-file": set[str](), "--ca-file": set[str]()}
    for context in contexts("weft", cli):
        for option in (each for each in context.command.params if each.opts[-1] in taking):
            taking[option.opts[-1]].add(context.command_path)
    assert taking["--token-file"] - taking["--ca-file"] == {"weft hub support-bundle"}, "it takes a CONFIG alone"
