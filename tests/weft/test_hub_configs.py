"""`weft hub config` and real edge processes: wrong configurations are tried, taken back, and told."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.processes import Node, Start, publish, weft
from tests.support.waiting import wait_until
from weft.config.signing import read_public_keys, read_signed
from weft.output import Failed, Refused
from weft.protocols.link import TEXT_CHARACTERS_MAX
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

HUB = """\
listen: 127.0.0.1:{port}
store: store
shards: 2
processes: 1
commit_interval: 20ms
tables: null
"""
EDGE = """\
node: press-{n}
data_dir: data
listeners: {{mqtt: null}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/#"}}}}
links:
  cloud:
    to: "http://127.0.0.1:{port}"
    config_from_hub: allowed_with_restart
    retry_min: 50ms
    retry_max: 1s
"""
EDGES = 20
WRONG = {
    "url": "links: {cloud: {to: 'http://127.0.0.1:9'}}",
    "authority": "links: {cloud: {to: 'https://127.0.0.1:%d'}}",
    "restart": "limits: {message: 2MiB}\nlinks: {cloud: {to: 'http://127.0.0.1:9'}}",
    "refused": "links: {cloud: {streams: [no-such-stream]}}",
    "good": "streams: {alarms: {from: 'alarms/#'}}",
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A hub's configuration with a store that a hub has used."""
    path = tmp_path / "hub.yaml"
    path.write_text(HUB.format(port=free_port()))
    asyncio.run(open_cluster(open_store(str(tmp_path / "store")), 2))
    return path


def test_settings_are_declared_shown_rolled_out_and_withdrawn(config: Path) -> None:
    folder = config.parent
    (folder / "good.yaml").write_text(WRONG["good"])
    (folder / "better.yaml").write_text(WRONG["good"].replace("alarms/#", "alarms/+"))
    (folder / "secret.yaml").write_text("links: {cloud: {token_file: /etc/passwd}}\ndata_dir: /tmp")
    weft("hub", "group", "set", config, "presses", "press-*")
    refused = weft("hub", "config", "set", config, "presses", folder / "secret.yaml", "--group").exception
    assert isinstance(refused, Refused)
    assert "links.cloud.token_file: cannot be set by a hub" in str(refused)
    assert "data_dir: cannot be set by a hub" in str(refused)
    unknown = weft("hub", "config", "set", config, "ovens", folder / "good.yaml", "--group").exception
    assert "there are: default/presses" in str(unknown)
    done = weft("hub", "config", "set", config, "presses", folder / "good.yaml", "--group")
    assert done.output == "declared version 2 for group presses of tenant default\n"
    assert weft("hub", "config", "get", config, "press-7").output == f"# group presses, version 2\n{WRONG['good']}\n"
    assert isinstance(weft("hub", "config", "get", config, "oven").exception, Failed)
    assert json.loads(weft("hub", "config", "status", config, "--json").output) == []
    more = ("--group", "--share", "10%", "--steps", "50%,100%", "--failures", "2")
    weft("hub", "config", "set", config, "presses", folder / "better.yaml", *more)
    continues = weft("hub", "config", "set", config, "presses", folder / "good.yaml", "--group").exception
    assert "a rollout of default/group/presses continues" in str(continues)
    (shown,) = json.loads(weft("hub", "config", "rollout", "list", config, "--json").output)
    assert (shown["share"], shown["state"], shown["version"]) == (0.1, "running", 3)
    weft("hub", "config", "rollout", "next", config, "presses", "--share", "50%")
    less = weft("hub", "config", "rollout", "next", config, "presses", "--share", "20%").exception
    assert "more than 50%" in str(less)
    weft("hub", "config", "rollout", "abort", config, "presses", "--reason", "not now")
    assert "alarms/#" in weft("hub", "config", "get", config, "press-7").output
    (shown,) = json.loads(weft("hub", "config", "rollout", "list", config, "--json").output)
    assert (shown["state"], shown["why"]) == ("aborted", "not now")
    kept = weft("hub", "group", "remove", config, "presses").exception
    assert "settings are declared for group default/presses" in str(kept)
    weft("hub", "config", "remove", config, "presses", "--group")
    assert isinstance(weft("hub", "config", "get", config, "press-7").exception, Failed)


@pytest.mark.search(turns=3)
@pytest.mark.processes
def test_wrong_configurations_of_twenty_edges_are_back_within_three_minutes(
    start: Start, config: Path, tmp_path: Path
) -> None:
    port = int(config.read_text().partition("127.0.0.1:")[2].partition("\n")[0])
    hub = start("hub", config)
    edges: list[tuple[Path, Node]] = []
    kinds = [list(WRONG)[n % len(WRONG)] for n in range(EDGES)]
    for n in range(EDGES):
        folder = tmp_path / f"edge-{n}"
        folder.mkdir()
        (folder / "edge.yaml").write_text(EDGE.format(n=n, port=port))
        edges.append((folder / "edge.yaml", start("edge", folder / "edge.yaml")))
    wait_until(lambda: len(hub.json("v1/status")["links"]) == EDGES, what="the links")
    for n, kind in enumerate(kinds):
        text = WRONG[kind] % port if "%d" in WRONG[kind] else WRONG[kind]
        (tmp_path / "layer.yaml").write_text(text)
        done = weft("hub", "config", "set", config, f"press-{n}", tmp_path / "layer.yaml")
        assert done.exit_code == 0, done.exception

    def outcomes() -> dict[str, str]:
        shown: list[dict[str, Any]] = json.loads(weft("hub", "config", "status", config, "--json").output)
        return {row["edge"]: row["outcome"] for row in shown}

    wait_until(lambda: len(hub.json("v1/status")["links"]) <= EDGES * 2 // 5, what="the wrong ones to be tried")
    # One of each kind is killed while its configuration is on trial, and started again.
    for n in range(len(WRONG)):
        path, node = edges[n]
        node.kill()
        edges[n] = path, start("edge", path)
    ends = {
        "url": "rolled back",
        "authority": "rolled back",
        "restart": "rolled back",
        "refused": "refused",
        "good": "confirmed",
    }
    wanted = {f"press-{n}": ends[kind] for n, kind in enumerate(kinds)}
    wait_until(lambda: outcomes() == wanted, what="every edge to be back", seconds=180)
    assert len(hub.json("v1/status")["links"]) == EDGES


# --- A real hub whose owner would change what an edge runs: it takes what a key signed, and the hub shows why not


SIGNED_CONFIGURATIONS_EDGE = """\
node: press-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:{http}"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/#"}}}}
links:
  cloud:
    to: "http://127.0.0.1:{port}"
    config_from_hub: allowed
    config_signed_by: [ops.pub]
    retry_min: 50ms
    retry_max: 1s
"""
GROUP = ("presses", "--group")
EACH = 20


class Hall:
    """A hub, an edge, and an operator with keys."""

    def __init__(self, start: Start, folder: Path) -> None:
        port = free_port()
        self.folder, self.config, self.edge_file = folder, folder / "hub.yaml", folder / "edge.yaml"
        self.config.write_text(HUB.format(port=port))
        self.edge_file.write_text(SIGNED_CONFIGURATIONS_EDGE.format(port=port, http=free_port()))
        for name in ("ops", "next", "thief"):
            self.done("config", "keygen", folder / name)
        self.hub, self.edge = start("hub", self.config), start("edge", self.edge_file)
        self.done("hub", "group", "set", self.config, "presses", "press-*")
        self.sent: list[str] = []

    def done(self, *arguments: object) -> str:
        result = weft(*arguments)
        assert result.exit_code == 0, result.exception
        return result.output

    def signed(self, stream: str, number: int, key: str = "ops", whose: tuple[str, ...] = GROUP) -> str:
        """Settings with one more stream, signed."""
        plain, path = self.folder / "plain.yaml", self.folder / "signed.yaml"
        plain.write_text(f"streams: {{{stream}: {{from: '{stream}/#'}}}}\n")
        edges = ("--edges", "press-*") if "--group" in whose else ()
        self.done(
            "config",
            "sign",
            plain,
            "--key",
            self.folder / f"{key}.key",
            "--for",
            *whose,
            *edges,
            "--number",
            number,
            "--out",
            path,
        )
        return path.read_text()

    def declare(self, text: str, whose: tuple[str, ...] = GROUP) -> int:
        """Have the hub want some settings; their version."""
        (self.folder / "declared.yaml").write_text(text)
        said = self.done("hub", "config", "set", self.config, whose[0], self.folder / "declared.yaml", *whose[1:])
        return int(said.split()[2])

    def outcome(self) -> dict[str, Any]:
        rows: list[dict[str, Any]] = json.loads(self.done("hub", "config", "status", self.config, "--json"))
        return next(iter(rows), {})

    def refuses(self, text: str, reason: str, whose: tuple[str, ...] = GROUP) -> None:
        self.declare(text, whose)
        self.shows_refusal(reason)

    def shows_refusal(self, reason: str) -> None:
        wait_until(
            lambda: self.outcome().get("outcome") == "refused" and reason in self.outcome()["reason"],
            what=f"the refusal: {reason}",
            seconds=30,
        )
        self.publish()

    def publish(self) -> None:
        """Devices continue, whatever is declared."""
        payloads = [f"{len(self.sent) + n}" for n in range(EACH)]
        publish(self.edge.mqtt_port, "plant/1", payloads)
        self.sent += payloads

    def streams(self) -> list[str]:
        return sorted(self.edge.json("status")["streams"])


@pytest.mark.slow
@pytest.mark.processes
def test_an_edge_takes_what_its_keys_signed_and_the_hub_shows_why_not(start: Start, tmp_path: Path) -> None:
    hall = Hall(start, tmp_path)
    wait_until(lambda: hall.hub.json("v1/status")["links"], what="the link")
    hall.refuses("streams: {spy: {from: '#'}}\n", "has no signature")
    first = hall.signed("alarms", 1)
    hall.declare(hall.signed("energy", 2))
    wait_until(lambda: hall.outcome()["outcome"] == "confirmed", what="the confirmation", seconds=120)
    assert "energy" in hall.streams()
    hall.publish()
    hall.refuses(first, "has the number 1, an earlier one again: the edge has had 2")
    hall.refuses(hall.signed("alarms", 3).replace("alarms/#", "#"), "it was changed after it was signed")
    hall.refuses(hall.signed("alarms", 3, "thief"), "which is none of config_signed_by")
    # The command says it first. A writer to the store could declare them all the same.
    other = hall.signed("alarms", 3, whose=("ovens", "--group"))
    refused = weft("hub", "config", "set", hall.config, "presses", tmp_path / "signed.yaml", "--group").exception
    assert "it is signed for group ovens of tenant default, not for group presses" in str(refused)
    hall.refuses(other.replace("target: group ovens", "target: group presses"), "it was changed after it was signed")
    hall.done("hub", "config", "remove", hall.config, *GROUP)
    hall.shows_refusal("group presses is missing, and nothing that is signed withdraws its settings")
    assert "energy" in hall.streams()
    assert "alarms" not in hall.streams()
    # Another key takes over, and the node runs on.
    hall.edge_file.write_text(hall.edge_file.read_text().replace("[ops.pub]", "[ops.pub, next.pub]"))
    hall.done("edge", "reload", hall.edge_file)
    version = hall.declare(hall.signed("alarms", 3, "next"))
    wait_until(lambda: hall.outcome().get("active") == version, what="settings of the next key", seconds=30)
    assert "alarms" in hall.streams()
    hall.publish()
    assert hall.edge.process.poll() is None
    wait_until(
        lambda: len(hall.hub.json("v1/streams/telemetry/records?limit=10000")["records"]) == len(hall.sent),
        what="every record",
        seconds=60,
    )
    records = hall.hub.json("v1/streams/telemetry/records?limit=10000")["records"]
    assert [each["payload"] for each in records] == hall.sent


FUNCTION = """\
node: press-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:{http}"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams:
  telemetry: {{from: "plant/#", payload: json}}
  scored: {{from_stream: telemetry, functions: [{{python: score.py}}]}}
"""
CODE = "def process(record, ctx):\n    return {'n': record['n'], 'by': '%s'}\n"


@pytest.mark.slow
@pytest.mark.processes
def test_a_node_runs_code_as_it_was_signed_and_goes_on_with_it(start: Start, tmp_path: Path) -> None:
    config, code = tmp_path / "edge.yaml", tmp_path / "score.py"
    config.write_text(FUNCTION.format(http=free_port()))
    code.write_text(CODE % "one")
    assert weft("config", "keygen", tmp_path / "ops").exit_code == 0
    edge = start("edge", config)

    def sign() -> None:
        assert weft("config", "sign-code", code, "--key", tmp_path / "ops.key").exit_code == 0

    def scored(n: int) -> list[dict[str, Any]]:
        publish(edge.mqtt_port, "plant/1", [json.dumps({"n": n})])
        lines: list[dict[str, Any]] = []

        def came() -> bool:
            said = weft("edge", "tail", config, "scored", "--json", "--last", 100).output.splitlines()
            lines[:] = [json.loads(json.loads(line)["payload"]) for line in said if "payload" in json.loads(line)]
            return any(line["n"] == n for line in lines)

        wait_until(came, what=f"record {n}", seconds=60)
        return lines

    assert scored(1) == [{"n": 1, "by": "one"}]
    config.write_text(config.read_text() + "functions_signed_by: [ops.pub]\n")
    refused = weft("edge", "reload", config)
    assert "score.py has no signature beside it" in str(refused.exception)
    assert scored(2)[-1] == {"n": 2, "by": "one"}
    assert edge.stop() == 0
    edge = start("edge", config)
    wait_until(lambda: "score.py has no signature beside it" in edge.text("status"), what="the function to wait")
    sign()
    assert scored(3)[-1] == {"n": 3, "by": "one"}
    code.write_text(CODE % "two")
    wait_until(
        lambda: scored(4)[-1]["by"] == "one" and "was changed after it was signed" in edge.text("status"),
        what="the changed code to be refused",
        seconds=60,
    )
    sign()
    wait_until(lambda: scored(5)[-1]["by"] == "two", what="the signed code", seconds=60)
    assert {line["by"] for line in scored(6) if line["n"] < 5} == {"one"}
    assert edge.stop() == 0


# --- `weft config keygen`, `sign`, `sign-code` and `verify`: keys and files, and what they refuse


TEXT = "streams: {alarms: {from: 'alarms/#'}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert weft("config", "keygen", tmp_path / "ops").exit_code == 0
    (tmp_path / "presses.yaml").write_text(TEXT)
    return tmp_path


def refusal(folder: Path, *options: object, file: str = "presses.yaml") -> str:
    result = weft("config", "sign", folder / file, "--key", folder / "ops.key", *options)
    assert isinstance(result.exception, Refused), result.output
    return str(result.exception)


def test_a_group_is_signed_and_signed_again(folder: Path) -> None:
    group = ("--for", "acme/presses", "--group", "--edges", "press-*", "--edges", "oven-1", "--withdraws", "old")
    out = folder / "presses.signed.yaml"
    for file in ("presses.yaml", "presses.signed.yaml"):
        more = ("--out", out) if file != "presses.yaml" else ()
        done = weft("config", "sign", folder / file, "--key", folder / "ops.key", *group, "--order", "-3", *more)
        assert done.exit_code == 0, done.exception
    found = read_signed(out.read_text())
    assert found is not None
    assert found.text == f"{TEXT}\n", "a signature that was there is replaced"
    said = found.statement
    assert (said.tenant, said.target, said.edges) == ("acme", "group presses", ("press-*", "oven-1"))
    assert (said.order, said.withdraws) == (-3, ("group old",))
    assert said.number > 1_700_000_000, "seconds since 1970"
    shown = json.loads(weft("config", "verify", out, "--key", folder / "ops.pub", "--json").output)
    assert (shown["signed"], shown["number"], shown["edges"]) == (True, said.number, "press-*, oven-1")
    out.write_text(out.read_text().replace("alarms/#", "#"))
    wrong = weft("config", "verify", out, "--key", folder / "ops.pub").exception
    assert isinstance(wrong, Failed)
    assert "whether the file was changed" in str(wrong)


def test_mistakes_are_named_before_anything_is_signed(folder: Path) -> None:
    assert "name them with --edges" in refusal(folder, "--for", "presses", "--group")
    assert "--edges is for groups" in refusal(folder, "--for", "press-7", "--edges", "press-*")
    assert "--order is for groups" in refusal(folder, "--for", "press-7", "--order", "2")
    assert "'Press 7' is not a valid name" in refusal(folder, "--for", "Press 7")
    assert "'press-7, press-8' is not" in refusal(folder, "--for", "a", "--group", "--edges", "press-7, press-8")
    (folder / "wrong.yaml").write_text("data_dir: /tmp\n")
    assert "data_dir: cannot be set by a hub" in refusal(folder, "--for", "press-7", file="wrong.yaml")
    (folder / "wrong.yaml").write_text("# " + "x" * TEXT_CHARACTERS_MAX + f"\n{TEXT}\n")
    assert f"the limit is {TEXT_CHARACTERS_MAX}" in refusal(folder, "--for", "press-7", file="wrong.yaml")
    assert not list(folder.glob("*.signed.yaml"))


def test_a_private_key_is_private_and_of_the_one_algorithm(folder: Path) -> None:
    key = folder / "ops.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    again = weft("config", "keygen", folder / "ops").exception
    assert "exists already" in str(again)
    key.chmod(0o644)
    assert "run chmod 600" in refusal(folder, "--for", "press-7")
    key.chmod(0o600)
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    other = ec.generate_private_key(ec.SECP256R1())
    key.write_bytes(other.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    assert "it is not a key of Ed25519" in refusal(folder, "--for", "press-7")
    (folder / "ec.pub").write_bytes(
        other.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    assert "it is not a key of Ed25519" in read_public_keys([str(folder / "ec.pub")]).problems[0]
    closed = ed25519.Ed25519PrivateKey.generate()
    key.write_bytes(closed.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"word")))
    assert "not a private key in PEM without a password" in refusal(folder, "--for", "press-7")


def test_without_the_library_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    assert "Install weft-fabric[signatures]" in refusal(folder, "--for", "press-7")
    known = read_public_keys([str(folder / "ops.pub")])
    assert known.keys == ()
    assert "Install weft-fabric[signatures]" in known.problems[0]
