"""The support bundle: what helps is in it, and no secret that was planted anywhere."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.support.processes import weft
from weft.commands import support_bundle
from weft.commands.support_bundle import MASK, Secrets
from weft.config.models import HubConfig
from weft.edge_node.access import users

TOKEN, PASSWORD, IN_ENVIRONMENT, IN_LOG = "t0kenOfTheLink", "pa55wordOfTheProxy", "s3cretOfTheBucket", "t0kenInTheLog"
EDGE = """\
node: press-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:{port}", anonymous: never}}}}
http: null
auth: {{users_file: users}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/#"}}}}
links:
  cloud:
    to: "http://127.0.0.1:{hub}"
    token_file: token
    proxy: "http://127.0.0.1:{proxy}"
    proxy_username: mara
    proxy_password_file: proxy-password
"""


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        parts = {each.name: archive.extractfile(each) for each in archive.getmembers()}
        return {name.removeprefix("weft-support/"): file.read().decode() for name, file in parts.items() if file}


@pytest.mark.slow
@pytest.mark.processes
def test_no_planted_secret_is_in_the_bundle_of_an_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", IN_ENVIRONMENT)
    hashed = users.hasher().hash(b"of a device")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "proxy-password").write_text(f"{PASSWORD}\n")
    (tmp_path / "users").write_text(f"gateway:{hashed}\n")
    log = tmp_path / "log"
    log.write_text(
        f"refused: Authorization: Bearer {IN_LOG}\nproxy http://mara:{PASSWORD}@proxy\n{TOKEN}, {IN_ENVIRONMENT}\n"
        "the link to hub.example.com is open\n"
    )
    config, to = tmp_path / "edge.yaml", tmp_path / "support.tar.gz"
    config.write_text(EDGE.format(port=free_port(), hub=free_port(), proxy=free_port()))
    done = weft("edge", "support-bundle", config, "--to", to, "--log", log, "--json")
    assert done.exception is None, done.exception
    answer = json.loads(done.output)
    assert stat.S_IMODE(to.stat().st_mode) == 0o600
    parts = contents(to)
    assert {"config.json", "machine.json", "status.json", "doctor.json", "log.txt", "missing.json"} <= parts.keys()
    assert answer["missing"]["metrics.txt"] == "the node has no `http`"
    for secret in (TOKEN, PASSWORD, IN_ENVIRONMENT, IN_LOG, hashed, hashed.rpartition("$")[2]):
        assert [name for name, text in parts.items() if secret in text] == []
    settings = json.loads(parts["config.json"])
    assert settings["links"]["cloud"]["token_file"] == str(tmp_path / "token")
    assert settings["streams"]["telemetry"]["from"] == ["plant/#"]
    assert "the link to hub.example.com is open" in parts["log.txt"]
    assert json.loads(parts["doctor.json"])["lines"]
    assert "already exists" in str(weft("edge", "support-bundle", config, "--to", to).exception)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer {}",
        "GET https://user:{}@host/x",
        "https://store/x?sig={}&v=1",
        "password = {}",
        '"token": "{}"',
        "secret: '{}'",
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
        "-----BEGIN EC PRIVATE KEY-----\n{}",
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text: str) -> None:
    left = Secrets({}, {}).removed_from(f"before {text.format('v3rySecret')} after")
    assert "v3rySecret" not in left
    assert left.startswith("before")


def test_secrets_of_files_that_the_settings_name_are_taken_out_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("-----BEGIN KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END KEY-----\n")
    (tmp_path / "headers").write_text("x-api-key: abcdef123\n")
    settings = {"tls": {"key": str(tmp_path / "key")}, "tracing": {"headers_file": str(tmp_path / "headers")}}
    left = Secrets(settings, {"SOME_TOKEN": "xyzzy-17"}).removed_from("MIGHAgEAMBMGByqGSM49 abcdef123 xyzzy-17 here")
    assert left == f"{MASK} {MASK} {MASK} here"


def test_a_bundle_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_bundle, "PART_BYTES_MAX", 1000)
    log = tmp_path / "log"
    log.write_text("old\n" * 10_000 + "the newest line\n")
    made = support_bundle.Bundle(HubConfig(store="store"), {})
    made.add_log("weft-hub", str(log))
    assert made.parts["log.txt"].endswith(b"the newest line\n")
    assert all(len(each) <= 1000 for each in made.parts.values())
