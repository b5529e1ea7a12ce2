"""`weft hub token|tenant|stream expect`: commands on a store, also beside running hub processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.cloud_hub.facts.test_hub import SOON
from tests.cloud_hub.live import running_hub
from tests.cloud_hub.regions.fabric import to
from tests.cloud_hub.test_administration import ADMIN, open_to_an_administrator
from tests.support.mqtt_client import BlockingPaho
from tests.support.processes import Node, Start, publish, weft
from tests.support.tokens import AUDIENCE, ISSUER, Key, claims, create_token, key_of, key_set, signed
from tests.support.waiting import PATIENCE_S, wait_until
from weft.client import pages
from weft.client.operations import Request
from weft.cloud_hub.facts.tokens import Credentials
from weft.commands import hub_access, hub_tokens
from weft.commands.common import load_hub
from weft.hub_api.answers import parse_moment
from weft.hub_api.rights import Scope
from weft.output import Failed, Refused
from weft.storage import hub_keys
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import ClusterLog, ClusterState
from weft.storage.object_store import open_store
from weft.storage.object_store.directory import MemoryStore

EDGE = """\
node: press-shop-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry"}}}}
links: {{cloud: {{to: "http://127.0.0.1:{port}", token_file: token, retry_min: 50ms, retry_max: 200ms}}}}
"""
HUB = """\
listen: 127.0.0.1:{port}
store: store
shards: 2
processes: {processes}
commit_interval: 20ms
tables: null
anonymous: never
"""
SOON_S = 10.0
"""Two seconds and some requests, as `Patience` counts them: not by the clock alone."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A hub's configuration with a store that a hub has used."""
    path = tmp_path / "hub.yaml"
    path.write_text(HUB.format(port=free_port(), processes=1))
    asyncio.run(open_cluster(open_store(str(tmp_path / "store")), 2))
    return path


def listed(command: str, config: Path) -> Any:
    return json.loads(weft("hub", command, "list", config, "--json").output)


def test_a_token_is_printed_once_and_no_listing_and_no_object_has_it(config: Path) -> None:
    more = ("--reason", "a new press", "--by", "mara", "--expires", "30d")
    token = weft("hub", "token", "add", config, "press", "--scope", "edge", "--edge", "press-7", *more).stdout.strip()
    assert len(token) > 40
    (found,) = listed("token", config)
    assert {key: found[key] for key in ("name", "scope", "tenant", "edge", "secrets", "by", "reason")} == {
        "name": "press",
        "scope": "edge",
        "tenant": "default",
        "edge": "press-7",
        "secrets": 1,
        "by": "mara",
        "reason": "a new press",
    }
    second = json.loads(weft("hub", "token", "rotate", config, "press", "--json").stdout)["token"]
    assert listed("token", config)[0]["secrets"] == 2
    texts = [weft("hub", "token", "list", config, *more).output for more in ((), ("--json",))]
    texts += [path.read_bytes().decode(errors="replace") for path in config.parent.rglob("*") if path.is_file()]
    assert not any(secret in text for secret in (token, second) for text in texts)
    assert weft("hub", "token", "remove", config, "press").output.splitlines()[0] == "withdrew press"
    assert listed("token", config) == []


def test_a_profile_of_shared_tables_has_a_token_of_its_own(config: Path) -> None:
    profile = config.parent / "team.share"
    config.write_text(config.read_text() + "advertise: [https://hub.example.com]\n")
    given = (
        "team",
        "--stream",
        "press-*",
        "--stream",
        "flow",
        "--expires",
        "30d",
        "--to",
        profile,
        "--reason",
        "trial",
    )
    made = weft("hub", "share", config, *given)
    assert "wrote the profile to" in made.output
    assert "does not have `sharing: true`" in made.stderr
    assert profile.stat().st_mode & 0o777 == 0o600
    found = json.loads(profile.read_text())
    assert found["shareCredentialsVersion"] == 1
    assert found["endpoint"] == "https://hub.example.com/delta-sharing"
    (token,) = listed("token", config)
    assert (token["grants"], token["until"]) == (["share:press-*", "share:flow"], found["expirationTime"])
    assert found["bearerToken"] not in json.dumps(token)
    again = weft("hub", "share", config, *given)
    assert isinstance(again.exception, Refused), "neither the file nor the token is replaced"
    assert json.loads(profile.read_text()) == found
    elsewhere = weft("hub", "share", config, "other", "--stream", "press", "--url", "https://a.b/", "--to", "o.share")
    assert elsewhere.exception is None
    other = Path("o.share")
    assert json.loads(other.read_text())["endpoint"] == "https://a.b/delta-sharing"
    other.unlink()


def test_tokens_of_a_file_are_declared_as_they_are(config: Path) -> None:
    tokens = config.parent / "tokens"
    made = [
        create_token(tokens, name, Scope.EDGE, tenant, name)
        for name, tenant in (("a", "default"), ("b", "acme"), ("c", "default"))
    ]
    first = weft("hub", "token", "import", config, "--file", tokens)
    assert "there is no tenant 'acme'" in str(first.exception)
    weft("hub", "tenant", "add", config, "acme")
    done = weft("hub", "token", "import", config, "--file", tokens)
    assert done.output == "declared 3 tokens: a, b, c; 0 existed already\n", "nothing of it was"
    assert weft("hub", "token", "import", config, "--file", tokens).output == "declared 0 tokens; 3 existed already\n"
    credentials = Credentials(False, lambda: 0)
    store = open_store(str(config.parent / "store"))
    cluster = asyncio.run(open_cluster(store, None))
    credentials.refresh(asyncio.run(ClusterLog(store, cluster.cluster_id).load()))
    found = [credentials.identify(token.strip()) for token in made]
    assert [(each.edge, each.tenant) for each in found if each] == [("a", "default"), ("b", "acme"), ("c", "default")]
    weft("hub", "token", "rotate", config, "b", "--overlap", "0s")
    create_token(tokens, "d", Scope.READER)
    later = weft("hub", "token", "import", config, "--file", tokens)
    assert "declared 1 token: d; 3 existed already" in later.output
    assert "warning: b has another secret at the hubs, and keeps it" in later.stderr


def test_the_first_token_makes_the_store_of_a_hub_that_never_ran(tmp_path: Path) -> None:
    config, tokens = tmp_path / "hub.yaml", tmp_path / "tokens"
    config.write_text(HUB.format(port=free_port(), processes=1).replace("anonymous: never\n", ""))
    create_token(tokens, "filed", Scope.READER)
    made = weft("hub", "token", "import", config, "--file", tokens)
    assert made.exit_code == 0, "no hub is open, so none is closed"
    assert "created a new store: " in made.stderr
    assert weft("hub", "token", "add", config, "ops", "--scope", "admin").exit_code == 0
    assert [each["name"] for each in listed("token", config)] == ["filed", "ops"]
    assert asyncio.run(open_cluster(open_store(str(tmp_path / "store")), None)).shards == 2, "as the configuration says"


LONG = "x" * 600


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("token", "add", "{}", "bad name!", "--scope", "reader"), "is not a valid name of a token"),
        (("token", "add", "{}", "x", "--scope", "reader", "--tenant", "No Name"), "tenant and edge need"),
        (("token", "add", "{}", "x", "--scope", "reader", "--tenant", "acme"), "there is no tenant 'acme'"),
        (("token", "add", "{}", "x", "--scope", "reader", "--expires", "soon"), "--expires: expected a duration"),
        (("token", "add", "{}", "x", "--scope", "reader", "--reason", LONG), "the reason has 600 characters"),
        (("token", "add", "{}", "x", "--scope", "reader", "--to", "hub.yaml"), "already exists"),
        (("token", "add", "{}", "x", "--scope", "reader", "--to", "x.token", "--by", LONG), "the name of the author"),
        (("token", "add", "{}", "--from", "names", "--scope", "reader", "--to", "hub.yaml"), "is not a folder"),
        (("token", "add", "{}", "--from", "names", "--scope", "reader", "--to", "made", "--tenant", "a b"), "need"),
        (("token", "add", "{}", "--from", "names", "--scope", "reader", "--to", "made", "--expires", "x"), "--expires"),
        (("token", "pair", "{}", "No Edge", "--name", "x"), "tenant and edge need"),
        (("token", "pair", "{}", "x", "--within", "2d"), "the limit of a code is 24 h"),
        (("token", "pair", "{}", "x", "--expires", "2001-01-01"), "--expires: 2001-01-01 is in the past"),
        (("token", "import", "{}", "--file", "tokens"), "there is no tenant 'acme'"),
        (("tenant", "add", "{}", "No Name"), "is not a valid name of a tenant"),
        (("tenant", "add", "{}", "acme", "--edges", "many"), "--edges: "),
        (("tenant", "add", "{}", "acme", "--records-per-second", "0"), "a rate has to be at least 1 a second"),
        (("tenant", "add", "{}", "acme", "--reason", LONG), "the reason has 600 characters"),
        (("stream", "expect", "{}", "a b", "x"), "'a b' is not a valid name"),
        (("stream", "expect", "{}", "acme/t", "x"), "there is no tenant 'acme'"),
        (("stream", "expect", "{}", "t", *(f"edge-{n}" for n in range(9_000))), "a document of"),
        (("table", "set", "{}", "t", "--retain", "1s"), "--retain"),
        (("table", "set", "{}", "t", "--formats", "iceberg"), "expected `delta` or `delta,iceberg`, got iceberg"),
        (("retire", "{}", "x", "--reason", "gone", "--yes"), "the store holds no hub"),
    ],
)
def test_what_is_refused_makes_no_store_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hub.yaml").write_text(HUB.format(port=free_port(), processes=1))
    (tmp_path / "names").write_text("a\nb\n")
    create_token(tmp_path / "tokens", "filed", Scope.READER, "acme")
    before = set(tmp_path.rglob("*"))
    found = weft("hub", *(each.format("hub.yaml") for each in arguments))
    assert isinstance(found.exception, Failed | Refused)
    assert error in str(found.exception)
    assert set(tmp_path.rglob("*")) == before


def test_the_time_of_a_code_begins_when_the_question_before_it_is_answered(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(config.read_text().replace("anonymous: never\n", ""))
    asked: list[int] = []
    monkeypatch.setattr(hub_tokens, "confirm", lambda *_: asked.append(time.time_ns()))
    found = json.loads(weft("hub", "token", "pair", config, "press-7", "--within", "15m", "--json").stdout)
    assert parse_moment(found["until"]) >= asked[0] + 900 * 10**9


@pytest.mark.parametrize("content", [b"tokens: [1", b"[" * 10_000, b"\xff\xfe", b"tokens: 7", b"a secret", b""])
def test_a_file_without_tokens_is_refused_with_its_name(config: Path, content: bytes) -> None:
    path = config.parent / "tokens"
    path.write_bytes(content)
    found = weft("hub", "token", "import", config, "--file", path)
    assert isinstance(found.exception, Refused)
    assert str(path) in str(found.exception)
    assert listed("token", config) == []


def test_the_command_of_former_token_files_names_the_one_of_the_store() -> None:
    assert "token` is called `" in str(weft("token", "add", "x").exception)


def test_a_user_without_a_name_is_its_number(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert weft("hub", "tenant", "add", config, "acme").exit_code == 0
    assert listed("tenant", config)[0]["by"].startswith("uid 54321@")


def test_tenants_come_with_quotas_and_go_after_their_tokens(config: Path) -> None:
    weft("hub", "tenant", "add", config, "acme", "--edges", "1", "--stored-bytes", "2TiB", "--by", "mara")
    weft("hub", "tenant", "set", config, "acme", "--bytes-per-second", "4MiB/s", "--stored-bytes", "none")
    weft("hub", "token", "add", config, "one", "--scope", "edge", "--edge", "a", "--tenant", "acme")
    weft("hub", "stream", "expect", config, "acme/telemetry", "press-*", "oven")
    assert weft("hub", "stream", "expect", config, "acme/telemetry").output == "press-*\noven\n"
    found, always_there = listed("tenant", config)
    assert (found["name"], always_there["name"]) == ("acme", "default")
    declared = {name: quota for name, quota in found["quotas"].items() if quota is not None}
    assert declared == {"edges": 1, "bytes_per_second": 4 << 20}
    assert (found["tokens"], found["streams_with_edges"], found["version"]) == (1, 1, 2)
    over = weft("hub", "token", "add", config, "two", "--scope", "edge", "--edge", "b", "--tenant", "acme")
    assert isinstance(over.exception, Failed)
    assert "tenant acme has tokens for 1 edges, its quota" in str(over.exception)
    assert "has tokens: one" in str(weft("hub", "tenant", "remove", config, "acme").exception)
    weft("hub", "token", "remove", config, "one")
    weft("hub", "stream", "expect", config, "acme/telemetry", "--withdraw")
    assert weft("hub", "tenant", "remove", config, "acme").output == "withdrew tenant acme\n"
    assert [each["name"] for each in listed("tenant", config)] == ["default"]
    acts = json.loads(weft("hub", "declarations", config, "--last", "3", "--json").output)
    assert [(each["entry"], each["act"], each["kind"], each["name"]) for each in acts] == [
        (7, "withdrew", "tenant", "acme"),
        (6, "withdrew", "stream", "acme/telemetry"),
        (5, "withdrew", "token", "one"),
    ]
    whole = weft("hub", "declarations", config).output
    assert "mara" in whole
    assert "sha256" not in whole


def test_the_first_token_of_an_open_hub_is_asked_about(config: Path) -> None:
    config.write_text(config.read_text().replace("anonymous: never\n", ""))
    add = ("hub", "token", "add", config, "ops", "--scope", "admin")
    refused = weft(*add)
    assert isinstance(refused.exception, Refused)
    assert "nothing was declared" in str(refused.exception)
    assert listed("token", config) == []
    assert weft(*add, "--yes").exit_code == 0
    weft("hub", "token", "add", config, "second", "--scope", "admin")
    assert len(listed("token", config)) == 2, "it is asked about the first only"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("token", "add", "x", "--scope", "edge"), "scope 'edge' needs an edge"),
        (("token", "add", "x", "--scope", "reader", "--edge", "a"), "the other scopes must not have one"),
        (("token", "add", "x", "--scope", "reader", "--tenant", "Other Tenant"), "tenant and edge need"),
        (("token", "add", "x", "--scope", "reader", "--grant", "read"), "a token has a scope, or grants"),
        (("token", "add", "x", "--grant", "write:a"), "grants to write need an edge"),
        (("token", "add", "x", "--grant", "operator", "--edge", "a"), "the others must not have one"),
        (("token", "add", "x" * 200, "--scope", "reader"), "printable characters"),
        (("token", "add", "x", "--scope", "reader", "--expires", "yesterday"), "expected a duration such as"),
        (("token", "add", "x", "--scope", "reader", "--expires", "2001-01-01"), "is in the past"),
        (("token", "add", "x\n", "--scope", "reader"), "printable characters"),
        (("token", "add", "k 1", "--scope", "reader"), "without spaces"),
        (("token", "create", "k", "--scope", "reader"), "is called `"),
        (("token", "add", "--from", "edges.txt", "--scope", "edge"), "--to FOLDER"),
        (("tenant", "add", "acme", "--edges", "-1"), "--edges: expected a number that is not negative"),
        (("tenant", "add", "acme", "--stored-bytes", "much"), "--stored-bytes: "),
        (("tenant", "set", "default"), "nothing to set"),
        (("tenant", "add", "No Name"), "is not a valid name of a tenant"),
        (("stream", "expect", "telemetry"), "declares no edges"),
        (("stream", "expect", "telemetry", "a", "--withdraw"), "--withdraw cannot be combined with EDGES"),
        (("token", "remove", "x"), "there is no token 'x'"),
    ],
)
def test_mistakes_are_named_and_write_nothing(config: Path, arguments: tuple[str, ...], error: str) -> None:
    group, command, *rest = arguments
    found = weft("hub", group, command, config, *rest)
    assert isinstance(found.exception, Failed | Refused)
    assert error in str(found.exception)
    assert asyncio.run(open_store(str(config.parent / "store")).list("cluster")) == []


def test_an_unusable_entry_is_named_by_every_command(config: Path) -> None:
    weft("hub", "tenant", "add", config, "acme")
    (config.parent / "store" / hub_keys.entry_key(2)).write_bytes(b"WFE\x01 nonsense")
    done = weft("hub", "tenant", "add", config, "other")
    assert done.exit_code == 0
    assert "warning: entry 2 of the cluster log is passed over: cluster/entry/" in done.stderr
    assert [each["name"] for each in listed_out(config)] == ["acme", "default", "other"]


def test_a_closed_hub_without_a_token_is_a_warning(config: Path) -> None:
    warning = "anonymous: the store declares no token, so the hub refuses every request. `weft hub token add` adds one"
    assert warning in weft("hub", "check", config).stderr
    weft("hub", "token", "add", config, "ops", "--scope", "admin")
    assert weft("hub", "check", config).stderr == ""


def listed_out(config: Path) -> Any:
    return json.loads(weft("hub", "tenant", "list", config, "--json").stdout)


def two_ports() -> int:
    """A free port with a free one behind it."""
    while True:
        first = free_port()
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", first + 1))
            return first


@pytest.mark.slow
@pytest.mark.processes
def test_every_process_of_a_hub_knows_a_change_in_seconds(start: Start, tmp_path: Path) -> None:
    port = two_ports()
    hub_yaml = tmp_path / "hub.yaml"
    hub_yaml.write_text(HUB.format(port=port, processes=2))
    start("hub", hub_yaml)

    def answers(token: str) -> list[int]:
        found = []
        for number in (port, port + 1):
            url = f"http://127.0.0.1:{number}/v1/status"
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                    found.append(answer.status)
            except urllib.error.HTTPError as error:
                found.append(error.code)
            except OSError:
                found.append(0)
        return found

    def answer_with(token: str, status: int) -> bool:
        return answers(token) == [status, status]

    wait_until(partial(answer_with, "none", 401), what="both processes")
    for n in range(4):
        token = weft("hub", "token", "add", hub_yaml, f"ops-{n}", "--scope", "admin").stdout.strip()
        wait_until(partial(answer_with, token, 200), SOON_S, "the token at both processes")
        weft("hub", "token", "remove", hub_yaml, f"ops-{n}")
        wait_until(partial(answer_with, token, 401), SOON_S, "the end of the token at both processes")


@pytest.mark.slow
@pytest.mark.processes
def test_a_running_hub_admits_and_withdraws_tokens_within_seconds(start: Start, tmp_path: Path) -> None:
    """A hub, an edge that sends, and commands beside them: nothing is started again."""
    port = free_port()
    hub_yaml, edge_yaml = tmp_path / "hub.yaml", tmp_path / "edge.yaml"
    hub_yaml.write_text(HUB.format(port=port, processes=1))
    hub = start("hub", hub_yaml)
    admin = weft("hub", "token", "add", hub_yaml, "ops", "--scope", "admin").stdout.strip()
    press = ("--scope", "edge", "--edge", "press-shop-7")
    (tmp_path / "token").write_text(weft("hub", "token", "add", hub_yaml, "press", *press).stdout)
    edge_yaml.write_text(EDGE.format(port=port))

    def status() -> Any:
        return get("v1/status")

    def get(path: str) -> Any:
        request = urllib.request.Request(f"{hub.url}{path}", headers={"Authorization": f"Bearer {admin}"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return {"status": error.code, "links": [], "shards": []}

    wait_until(lambda: "cluster_id" in status(), what="the admin token to open the hub")
    edge = start("edge", edge_yaml)
    publish(edge.mqtt_port, "plant/a/b/telemetry", [f"m {i}" for i in range(10)])
    wait_until(lambda: len(status()["links"]) == 1, what="the link")

    # While the edge sends, its token is rotated, and the old secret ends.
    going, sent = threading.Event(), 0

    def send() -> None:
        nonlocal sent
        while not going.is_set():
            publish(edge.mqtt_port, "plant/a/b/telemetry", [f"n {sent}"])
            sent += 1
            time.sleep(0.02)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        since = status()["links"][0]["connected_since"]
        rotated = weft("hub", "token", "rotate", hub_yaml, "press", "--overlap", "1d").stdout
        (tmp_path / "token").write_text(rotated)
        time.sleep(3)
        assert status()["links"][0]["connected_since"] == since, "the link of the old secret stays"
        weft("hub", "token", "rotate", hub_yaml, "press", "--overlap", "0s", "--json")
        wait_until(lambda: not status()["links"], SOON_S, "the link of a withdrawn secret to end")
        (tmp_path / "token").write_text(weft("hub", "token", "rotate", hub_yaml, "press", "--overlap", "0s").stdout)
        wait_until(lambda: len(status()["links"]) == 1, what="the link with the new secret")
    finally:
        going.set()
        sender.join()
    wait_until(lambda: get("v1/streams/telemetry")["records"] == 10 + sent, what="all records")
    found = json.loads(weft("hub", "nodes", hub_yaml, "--json").output)["nodes"]
    assert status()["cluster_log"]["entry"] == 5
    assert all("cluster_log" in each for each in found)
    edge.stop()
    weft("hub", "token", "remove", hub_yaml, "ops")
    wait_until(lambda: status().get("status") == 401, what="the admin token to be refused")


def test_groups_are_declared_listed_and_withdrawn(config: Path) -> None:
    weft("hub", "tenant", "add", config, "acme")
    done = weft("hub", "group", "set", config, "acme/presses", "press-*", "welder-1", "--by", "mara", "--order", "3")
    assert done.output == "declared group acme/presses: 2 names\n"
    weft("hub", "group", "set", config, "all", "*")
    first, second = listed("group", config)
    assert (first["tenant"], first["name"], first["edges"], first["order"]) == (
        "acme",
        "presses",
        ["press-*", "welder-1"],
        3,
    )
    assert (second["tenant"], second["name"], second["order"], second["unusable"]) == ("default", "all", 0, None)
    assert "press-* welder-1" in weft("hub", "group", "list", config).output
    assert isinstance(weft("hub", "group", "set", config, "All", "*").exception, Refused)
    assert weft("hub", "group", "remove", config, "acme/presses").output == "withdrew group acme/presses\n"
    assert "there are: default/all" in str(weft("hub", "group", "remove", config, "presses").exception)


def test_a_rotated_token_keeps_its_end_unless_another_is_given(config: Path) -> None:
    add = ("hub", "token", "add", config, "press", "--scope", "edge", "--edge", "press-7", "--expires", "10d")
    weft(*add)
    (before,) = listed("token", config)
    done = weft("hub", "token", "rotate", config, "press", "--json")
    assert json.loads(done.stdout)["until"] == before["until"]
    assert "ends with the one before" in done.stderr
    (found,) = listed("token", config)
    assert found["until"] == before["until"]
    assert found["secrets"] == 2
    assert found["older_until"] < before["until"], "the older secret ends after the overlap"
    later = ("hub", "token", "rotate", config, "press", "--end-oldest", "--json", "--expires")
    assert json.loads(weft(*later, "400d").stdout)["until"] > before["until"]
    assert json.loads(weft(*later, "never").stdout)["until"] is None


def test_a_token_is_written_for_its_owner_alone_and_not_printed(config: Path) -> None:
    path = config.parent / "press.token"
    done = weft("hub", "token", "add", config, "press", "--scope", "edge", "--edge", "press-7", "--to", path)
    token = path.read_text().strip()
    assert token not in done.output
    assert path.stat().st_mode & 0o777 == 0o600
    again = weft("hub", "token", "add", config, "press", "--scope", "edge", "--edge", "press-7", "--to", path)
    assert "is not overwritten" in str(again.exception)
    other = config.parent / "other.token"
    taken = weft("hub", "token", "add", config, "press", "--scope", "edge", "--edge", "press-7", "--to", other)
    assert "there is a token 'press' already" in str(taken.exception)
    assert not other.exists(), "a secret of no token is left nowhere"


def test_a_secret_of_a_running_hub_goes_through_no_link_and_leaves_no_empty_file(tmp_path: Path) -> None:
    path, other = tmp_path / "press.token", tmp_path / "other"
    other.write_text("theirs")
    with hub_tokens.reserved_file(str(path)) as fill:
        path.unlink()
        path.symlink_to(other)
        fill("secret")
    assert (path.read_text(), path.is_symlink(), path.stat().st_mode & 0o777) == ("secret\n", False, 0o600)
    assert other.read_text() == "theirs"
    with pytest.raises(KeyboardInterrupt), hub_tokens.reserved_file(str(tmp_path / "next.token")):
        raise KeyboardInterrupt
    assert not (tmp_path / "next.token").exists()


def test_a_fleet_gets_its_tokens_in_one_run_that_can_be_repeated(config: Path) -> None:
    names, folder = config.parent / "edges.txt", config.parent / "secrets"
    names.write_text("# hall 3\npress-1\npress-2 press-shop-2\n\n")
    add = ("hub", "token", "add", config, "--from", names, "--scope", "edge", "--to", folder, "--expires", "365d")
    assert weft(*add, "--dry-run").output == (
        "would declare 2 tokens; nothing was declared\n"
        "the hubs demand a token already, or their settings do: no link ends\n"
    )
    assert listed("token", config) == []
    assert not folder.exists()
    folder.mkdir()
    (folder / "press-2.token").write_text("a-secret-that-a-run-has-left-which-was-killed\n")
    assert weft(*add).output.startswith("declared 2 tokens; 0 existed already\n")
    assert sorted(path.name for path in folder.iterdir()) == ["press-1.token", "press-2.token"]
    assert [(each["name"], each["edge"]) for each in listed("token", config)] == [
        ("press-1", "press-1"),
        ("press-2", "press-shop-2"),
    ]
    (line,) = json.loads(weft("hub", "declarations", config, "--json").output)
    assert (line["entry"], line["kind"], line["target"]) == (1, "token", "press-1, press-2"), "one write of the store"
    assert "token press-1, press-2" in weft("hub", "declarations", config).output
    names.write_text(names.read_text() + "press-3\n")
    assert weft(*add).output.startswith("declared 1 token; 2 existed already\n")
    credentials = Credentials(False, time.time_ns)
    store = open_store(str(config.parent / "store"))
    cluster = asyncio.run(open_cluster(store, None))
    credentials.refresh(asyncio.run(ClusterLog(store, cluster.cluster_id).load()))
    found = [credentials.identify(path.read_text().strip()) for path in sorted(folder.iterdir())]
    assert [each.edge for each in found if each] == ["press-1", "press-shop-2", "press-3"]
    (folder / "press-1.token").unlink()
    assert "has no secrets of them: press-1" in str(weft(*add).exception)


@pytest.mark.parametrize(
    ("text", "error"),
    [("", "expected a line"), ("a\na\n", "a is listed twice"), ("a b c\n", "NAME and EDGE"), ("A/b\n", "a valid name")],
)
def test_a_file_of_names_with_a_mistake_declares_nothing(config: Path, text: str, error: str) -> None:
    names = config.parent / "edges.txt"
    names.write_text(text)
    done = weft("hub", "token", "add", config, "--from", names, "--scope", "edge", "--to", config.parent / "secrets")
    assert isinstance(done.exception, Refused)
    assert error in str(done.exception)
    assert listed("token", config) == []


def cluster_file(config: Path) -> Path:
    return config.parent / "store" / hub_keys.CLUSTER


@pytest.mark.parametrize(
    ("name", "isolation", "error"),
    [("ghost", "own", "no tenant 'ghost'"), ("A b", "own", "A b"), ("ghost", "shared", "no tenant 'ghost'")],
)
def test_a_tenant_that_is_not_declared_is_not_set_apart(config: Path, name: str, isolation: str, error: str) -> None:
    weft("hub", "tenant", "add", config, "acme")
    before = cluster_file(config).read_bytes()
    done = weft("hub", "tenant", "set", config, name, "--isolation", isolation)
    assert error in str(done.exception)
    assert cluster_file(config).read_bytes() == before, "there is no way back from a shard of its own"


CHANGES = [
    ("tenant", "set", "acme", "--edges", "4"),
    ("token", "remove", "acme"),
    ("split", "0", "--yes", "--force"),
    ("drain", "a"),
    ("drain", "a", "--undo"),
]


@pytest.mark.parametrize("command", CHANGES, ids=" ".join)
def test_a_store_that_a_later_release_raised_is_not_written(config: Path, command: tuple[str, ...]) -> None:
    weft("hub", "tenant", "add", config, "acme")
    file = cluster_file(config)
    file.write_text(file.read_text().replace('"level":', '"level":9,"was":'))
    there = {path: path.stat().st_mtime_ns for path in file.parent.rglob("*") if path.is_file()}
    words = command[:2] if command[0] in ("tenant", "token") else command[:1]
    done = weft("hub", *words, config, *command[len(words) :])
    assert "level 9" in str(done.exception)
    assert there == {path: path.stat().st_mtime_ns for path in file.parent.rglob("*") if path.is_file()}
    assert "no hub process runs" in weft("hub", "nodes", config).output


@pytest.mark.parametrize("command", CHANGES, ids=" ".join)
def test_a_place_without_a_hub_is_not_written(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "hub.yaml").write_text("store: wrong\nlisten: 127.0.0.1:0\n")
    (tmp_path / "wrong").mkdir()
    words = command[:2] if command[0] in ("tenant", "token") else command[:1]
    done = weft("hub", *words, tmp_path / "hub.yaml", *command[len(words) :])
    assert "holds no hub" in str(done.exception)
    assert list((tmp_path / "wrong").iterdir()) == []


def test_hubs_that_were_closed_by_a_first_token_can_be_opened(config: Path) -> None:
    config.write_text(config.read_text().replace("anonymous: never\n", ""))
    assert "requires no token" in str(weft("hub", "open", config, "--yes").exception)
    dry = weft("hub", "token", "add", config, "ops", "--scope", "admin", "--dry-run").stdout
    assert "it is the first one" in dry
    assert f"no hub answers at {load_hub(str(config)).listen}" in dry
    weft("hub", "token", "add", config, "ops", "--scope", "admin", "--yes")
    assert required(config)
    assert "tokens are declared: ops" in str(weft("hub", "open", config, "--yes").exception)
    assert "`weft hub open`" in weft("hub", "token", "remove", config, "ops").stderr
    assert required(config), "to withdraw the last token opens nothing"
    assert isinstance(weft("hub", "open", config).exception, Refused), "it asks, and there is no terminal"
    assert weft("hub", "open", config, "--yes").exit_code == 0
    assert not required(config)
    weft("hub", "token", "add", config, "ops", "--scope", "admin", "--yes")
    assert required(config), "the next token closes them again"


def required(config: Path) -> bool:
    store = open_store(str(config.parent / "store"))
    credentials = Credentials(False, time.time_ns)
    cluster = asyncio.run(open_cluster(store, None))
    credentials.refresh(asyncio.run(ClusterLog(store, cluster.cluster_id).load()))
    return credentials.required


def test_a_backup_is_declared_and_a_restore_says_whether_hubs_are_open(config: Path) -> None:
    folder = config.parent
    done = weft("hub", "backup", config, "--to", folder / "backup")
    assert done.exit_code == 0, done.exception
    (act,) = json.loads(weft("hub", "declarations", config, "--last", "1", "--json").output)
    assert (act["kind"], act["command"]) == ("backup", "hub backup")
    restored = weft("hub", "restore", "--from", folder / "backup", "--to", folder / "again")
    assert "requires no token" in restored.stderr
    assert "requires no token" in weft("hub", "verify", "--store", folder / "again").stderr
    weft("hub", "token", "add", config, "ops", "--scope", "admin")
    weft("hub", "backup", config, "--to", folder / "closed")
    found = json.loads(weft("hub", "restore", "--from", folder / "closed", "--to", folder / "more", "--json").output)
    assert found["demands_tokens"] is True
    assert json.loads(weft("hub", "verify", "--store", folder / "closed", "--json").output)["demands_tokens"] is True


def test_expected_edges_of_a_stream_without_a_table_are_asked_about(config: Path) -> None:
    assert "check the name" not in weft("hub", "stream", "expect", config, "telemetrie", "a").stderr
    config.write_text(config.read_text().replace("tables: null\n", ""))
    assert "check the name" in weft("hub", "stream", "expect", config, "telemetrie", "b").stderr


def test_a_list_of_a_store_reads_the_log_once_and_two_who_change_a_tenant_both_have_their_will(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("acme", "globex", "initech"):
        assert weft("hub", "tenant", "add", config, name, "--links", "3").exit_code == 0
    loads, load = [0], ClusterLog.load

    async def counted(log: ClusterLog) -> ClusterState:
        loads[0] += 1
        return await load(log)

    monkeypatch.setattr(ClusterLog, "load", counted)
    there = hub_access.StoreHub(str(config), None)
    found = [each.tenant for page in pages(there.tenants, limit=1) for each in page.tenants]
    assert (found, loads[0]) == (["acme", "default", "globex", "initech"], 1)
    answer, others = hub_access.StoreHub._answer, iter(("--lanes", "--streams"))

    def raced(hub: hub_access.StoreHub, request: Request[Any], /) -> Any:
        if request.method == "PUT" and (option := next(others, None)) is not None:
            assert weft("hub", "tenant", "set", config, "acme", option, "7").exit_code == 0
        return answer(hub, request)

    monkeypatch.setattr(hub_access.StoreHub, "_answer", raced)
    assert weft("hub", "tenant", "set", config, "acme", "--edges", "40").output == "changed tenant acme\n"
    quotas = there.tenant("acme").quotas
    assert (quotas.links, quotas.edges, quotas.lanes, quotas.streams) == (3, 40, 7, 7)


async def test_a_url_names_a_running_hub_that_sets_quotas_withdraws_tokens_and_pauses_a_region(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "root.token").write_text(ADMIN)

    async with running_hub(store, shards=1, regions=to("http://127.0.0.1:9"), **SOON) as hub:
        await open_to_an_administrator(hub, store)

        async def ask(group: str, verb: str, *words: str) -> str:
            given = "hub", group, *verb.split(), hub.url, *words, "--token-file", tmp_path / "root.token"
            result = await asyncio.to_thread(weft, *given)
            return result.output if result.exception is None else str(result.exception)

        assert await ask("tenant", "add", "acme", "--links", "3", "--lanes", "9") == "declared tenant acme\n"
        assert "declared already" in await ask("tenant", "add", "acme")
        changed = await ask("tenant", "set", "acme", "--links", "none", "--bytes-per-second", "4MiB/s")
        assert changed == "changed tenant acme\n"
        acme, default = json.loads(await ask("tenant", "list", "--json"))
        assert (default["name"], acme["name"]) == ("default", "acme")
        assert {name: value for name, value in acme["quotas"].items() if value is not None} == {
            "lanes": 9,
            "bytes_per_second": 4 << 20,
        }
        assert "4194304" in await ask("tenant", "list")
        assert "there is no tenant 'none'" in await ask("tenant", "set", "none", "--links", "1")
        assert "name the CONFIG" in await ask("tenant", "set", "acme", "--isolation", "own")
        assert "--by is for a configuration" in await ask("tenant", "set", "acme", "--links", "1", "--by", "mara")
        assert await ask("tenant", "add", "globex") == "declared tenant globex\n"
        assert await ask("tenant", "remove", "globex", "--reason", "over") == "withdrew tenant globex\n"
        assert "there is no tenant 'globex'" in await ask("tenant", "remove", "globex")
        assert "there is no token 'none'" in await ask("token", "remove", "none")
        assert "there are: east" in await ask("region", "pause", "south")
        assert f"weft hub region resume {hub.url} east" in await ask("region", "pause", "east", "--reason", "moved")
        assert "continue within some seconds" in await ask("region", "resume", "east")
        assert "east is not paused" in await ask("region", "resume", "east")
        file = tmp_path / "press.token"
        edge = "press", "--scope", "edge", "--edge", "press-1", "--expires", "9d"
        assert await ask("token", "add", *edge, "--to", str(file)) == f"wrote the token to {file}\n"
        secret, mode = file.read_text().strip(), file.stat().st_mode & 0o777
        assert (len(secret) > 30, mode) == (True, 0o600)
        assert "press" in await ask("token", "add", *edge, "--to", str(tmp_path / "twice.token"))
        assert not (tmp_path / "twice.token").exists(), "the hub made no secret"
        assert "--from reads the store" in await ask("token", "add", "--from", str(file), "--to", str(tmp_path))
        assert "--dry-run reads the store" in await ask("token", "add", *edge, "--dry-run")
        rotated = json.loads(await ask("token", "rotate", "press", "--expires", "90d", "--json"))
        assert (rotated["name"], rotated["token"] not in ("", secret)) == ("press", True)
        assert "there is no token 'none'" in await ask("token", "rotate", "none")
        paired = json.loads(await ask("token", "pair", "oven", "--tenant", "acme", "--within", "8h", "--json"))
        assert {key: paired[key] for key in ("edge", "tenant", "token")} == {
            "edge": "oven",
            "tenant": "acme",
            "token": "oven",
        }
        assert "the limit of a code is 24 h" in await ask("token", "pair", "oven", "--within", "2d")
        fleet = tmp_path / "fleet.yaml"
        create_token(fleet, "filed", Scope.READER)
        assert await ask("token", "import", "--file", str(fleet)) == "declared 1 token: filed; 0 existed already\n"
        assert await ask("token", "import", "--file", str(fleet)) == "declared 0 tokens; 1 existed already\n"
        acts = await ask("acts", "", "--json")
        assert json.loads(acts)["acts"]
        assert not any(each in acts for each in (secret, rotated["token"], paired["code"])), "a secret is shown once"
        for name in ("press", "oven", "filed"):
            assert await ask("token", "remove", name) == f"withdrew {name}\n"
        shared = tmp_path / "team.share"
        given = "team", "--stream", "press-*", "--tenant", "acme", "--expires", "30d", "--to", str(shared)
        assert f"wrote the profile to {shared}" in await ask("share", "", *given)
        profile = json.loads(shared.read_text())
        assert profile["endpoint"] == f"{hub.url}/delta-sharing"
        (team,) = [each for each in json.loads(await ask("token", "list", "--json")) if each["name"] == "team"]
        assert (team["tenant"], team["until"]) == ("acme", profile["expirationTime"])
        assert await ask("token", "remove", "team") == "withdrew team\n"
        assert [each["name"] for each in json.loads(await ask("token", "list", "--json"))] == ["ada"]
        assert "\nada\t" in await ask("token", "list")
        assert json.loads(await ask("token", "remove", "ada", "--json")) == {"removed": "ada", "left": 0}


# --- A token of an edge that sends is rotated and ends: nothing is started again, and each record is there once


TOPIC = "plant/a/b/telemetry"


class Sender(threading.Thread):
    """A device that publishes one numbered message after the other until it is stopped."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port, self._going, self.sent = port, threading.Event(), 0

    def run(self) -> None:
        while not self._going.is_set():
            publish(self._port, TOPIC, [f"n {self.sent}"])
            self.sent += 1
            time.sleep(0.01)

    def stop(self) -> None:
        self._going.set()
        self.join()


def ask(hub: Node, path: str, token: str) -> Any:
    request = urllib.request.Request(f"{hub.url}{path}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


def is_open(hub: Node, token: str) -> bool:
    try:
        return bool(ask(hub, "v1/status", token))
    except urllib.error.HTTPError:
        return False


@pytest.mark.slow
@pytest.mark.processes
def test_a_token_is_rotated_twice_under_load_and_ends_without_a_lost_record(start: Start, tmp_path: Path) -> None:
    port = free_port()
    hub_yaml, edge_yaml, token_file = tmp_path / "hub.yaml", tmp_path / "edge.yaml", tmp_path / "token"
    hub_yaml.write_text(HUB.format(port=port, processes=1))
    hub = start("hub", hub_yaml)
    admin = weft("hub", "token", "add", hub_yaml, "ops", "--scope", "admin").stdout.strip()
    press = ("--scope", "edge", "--edge", "press-shop-7", "--expires", "1h")
    token_file.write_text(weft("hub", "token", "add", hub_yaml, "press", *press).stdout)
    edge_yaml.write_text(EDGE.format(port=port))
    wait_until(lambda: is_open(hub, admin), what="the admin token to open the hub")
    edge = start("edge", edge_yaml)

    def links() -> Any:
        return ask(hub, "v1/status", admin)["links"]

    wait_until(lambda: len(links()) == 1, what="the link")
    sender = Sender(edge.mqtt_port)
    sender.start()
    try:
        # In time: the new secret is there before the old one ends, and the link is away for a moment.
        since = links()[0]["connected_since"]
        token_file.write_text(weft("hub", "token", "rotate", hub_yaml, "press", "--overlap", "5s").stdout)
        wait_until(lambda: [each["connected_since"] for each in links()] not in ([since], []), what="the new link")
        # Late: the edge has an ended secret for a while, and says so.
        late = weft("hub", "token", "rotate", hub_yaml, "press", "--overlap", "2s", "--expires", "90d").stdout
        wait_until(lambda: not links(), what="the end of the link")
        wait_until(
            lambda: "(401): the token 'press' ended at" in edge.json("status")["links"]["cloud"]["last_error"],
            what="the reason at the edge",
        )
        sent = sender.sent
        wait_until(lambda: sender.sent > sent + 20, what="messages that wait at the edge")
        token_file.write_text(late)
        wait_until(lambda: len(links()) == 1, what="the link with the new secret")
    finally:
        sender.stop()

    def received() -> list[str]:
        found: list[str] = []
        for shard in range(2):
            offset = 0
            while True:
                path = f"v1/streams/telemetry/records?shard={shard}&offset={offset}&limit=1000"
                answer = ask(hub, path, admin)
                found += [each["payload"] for each in answer["records"]]
                if not answer["records"]:
                    break
                offset = answer["next_offset"][str(shard)]
        return found

    wait_until(lambda: len(received()) >= sender.sent, what="all records")
    assert sorted(received()) == sorted(f"n {each}" for each in range(sender.sent)), "each once"
    assert hub.process.poll() is None
    assert edge.process.poll() is None
    status = weft("hub", "token", "list", hub_yaml, "--json").output
    assert next(each for each in json.loads(status) if each["name"] == "press")["until"].startswith("20")


# --- A hub with an issuer of tokens in its file: what its commands say


CONFIG = """\
listen: 127.0.0.1:{port}
store: {store}
shards: 1
processes: 1
tables: null
jwt:
  issuer: {issuer}
  audience: {audience}
  jwks_file: keys.json
  unknown_key: 100ms
  roles: {{operators: [admin]}}
"""


@pytest.mark.slow
@pytest.mark.processes
def test_commands_show_what_a_token_of_an_issuer_opens(start: Start, tmp_path: Path) -> None:
    config, keys, bearer = tmp_path / "hub.yaml", tmp_path / "keys.json", tmp_path / "token"
    store = tmp_path / "store"
    config.write_text(CONFIG.format(port=free_port(), store=store, issuer=ISSUER, audience=AUDIENCE))
    key = key_of("EdDSA", "1")
    bearer.write_text(signed(key, "EdDSA", claims(scope="operators", sub="ada")))
    assert "no such file" in weft("hub", "check", config).output
    keys.write_bytes(key_set(key))
    start("hub", config)
    token = ("--token-file", bearer)
    answer = json.loads(weft("hub", "whoami", config, *token, "--json").output)
    assert (answer["token"], answer["scope"], answer["until"][:2]) == ("jwt:ada", "admin", "20")
    assert "JWT:" not in weft("hub", "status", config, *token).output
    keys.write_text("{}")
    stranger = tmp_path / "stranger"
    stranger.write_text(signed(key_of("EdDSA", "2"), "EdDSA", claims(scope="operators")))

    def is_warned() -> bool:
        weft("hub", "whoami", config, "--token-file", stranger)
        return "could not be read for" in weft("hub", "status", config, *token).output

    wait_until(is_warned, what="the warning that the keys cannot be read")
    assert "its 1 key may be used until 20" in weft("hub", "status", config, *token).output


HUB_ISSUER_EDGE = """\
node: press-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:{mqtt}"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB}}
streams: {{telemetry: {{from: "plant/#"}}}}
links: {{cloud: {{to: "http://127.0.0.1:{hub}", token_file: token, retry_min: 20ms, retry_max: 200ms}}}}
"""
LIVES_S = 3.0


@pytest.mark.slow
@pytest.mark.processes
def test_an_edge_process_goes_on_with_each_token_that_an_agent_writes(start: Start, tmp_path: Path) -> None:
    hub, mqtt, keys, token = free_port(), free_port(), tmp_path / "keys.json", tmp_path / "token"
    text = CONFIG.format(port=hub, store=tmp_path / "store", issuer=ISSUER, audience=AUDIENCE)
    config = text.replace("{operators: [admin]}", "{reader: [reader], edge: [edge]}") + "  leeway: 0s\n"
    (tmp_path / "hub.yaml").write_text(config + "commit_interval: 20ms\n")
    (tmp_path / "edge.yaml").write_text(HUB_ISSUER_EDGE.format(mqtt=mqtt, hub=hub))
    used, ends = [key_of("ES256", "1")], threading.Event()

    def replace(path: Path, data: bytes) -> None:
        path.with_suffix(".new").write_bytes(data)
        path.with_suffix(".new").chmod(0o600)
        os.replace(path.with_suffix(".new"), path)

    def made(key: Key, scope: str, seconds: float) -> bytes:
        return signed(key, "ES256", claims(seconds, sub="press-7", scope=scope)).encode()

    def agent() -> None:
        while not ends.wait(0.3):
            replace(token, made(used[-1], "edge", LIVES_S))

    replace(keys, key_set(*used))
    start("hub", tmp_path / "hub.yaml")
    replace(token, made(used[-1], "edge", LIVES_S))
    edge = start("edge", tmp_path / "edge.yaml")
    writing = threading.Thread(target=agent)
    writing.start()
    number, links = 0, set[str | None]()

    def published_until(is_reached: Callable[[dict[str, Any]], bool]) -> None:
        """Publish a message for each look at the link, until it is in some state."""
        client = BlockingPaho()
        links.clear()
        assert client.connect(mqtt) == "Success"

        def is_so() -> bool:
            nonlocal number
            client.publish("plant/a", str(number))
            number += 1
            link = edge.json("status")["links"]["cloud"]
            links.add(link["connected_since"])
            return is_reached(link)

        wait_until(is_so, what="a state of the link")
        client.close()

    try:
        published_until(lambda _: len(links - {None}) >= 3)  # each with the token of its moment
        used.append(key_of("ES256", "2"))  # signed with before the hub can know it
        published_until(lambda link: "key" in (link["last_error"] or ""))
        replace(keys, key_set(*used))
        published_until(lambda link: link["state"] == "connected")
        replace(keys, key_set(used[-1]))
        edge.kill()
        edge = start("edge", tmp_path / "edge.yaml")
        published_until(lambda _: len(links - {None}) >= 2)

        bearer = {"Authorization": f"Bearer {made(used[-1], 'reader', 600).decode()}"}
        found = list[str]()

        def are_all_there() -> bool:
            url = f"http://127.0.0.1:{hub}/v1/streams/telemetry/records?shard=0&offset={len(found)}"
            with urllib.request.urlopen(urllib.request.Request(url, headers=bearer)) as answer:
                found.extend(each["payload"] for each in json.load(answer)["records"])
            return len(found) >= number

        wait_until(are_all_there, what=lambda: f"{number} records: {len(found)}")
        assert found == [str(each) for each in range(number)], "each once, in their order"
    finally:
        ends.set()
        writing.join()
