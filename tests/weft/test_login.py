"""Commands that ask a hub by its URL or by the name of a login, from a machine without its configuration."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
from pathlib import Path

import pytest
from click.testing import Result

from tests.cloud_hub.api.test_application import deliver, records
from tests.cloud_hub.live import EdgeLog, running_hub
from tests.support.processes import weft
from tests.support.tokens import create_token
from weft.client import logins
from weft.commands import hub_tenants
from weft.hub_api.rights import Scope
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

EDGE = LinkIdentity("acme", "press-1", 0xABC, "test")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in (logins.HUB_VARIABLE, logins.TOKEN_VARIABLE, logins.TOKEN_FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


def said(result: Result) -> str:
    return f"{result.output}{result.exception or ''}"


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


def test_a_file_of_logins_that_others_read_or_that_is_damaged_opens_nothing() -> None:
    logins.write({"plant": logins.Login("https://hub.example.com", "secret")})
    os.chmod(logins.path(), 0o644)
    assert "run chmod 600" in said(weft("hub", "status", "plant"))
    os.chmod(logins.path(), 0o600)
    Path(logins.path()).write_text('{"hubs": {"plant": {"url": "ftp://hub", "token": "secret"}}}')
    reported = said(weft("login"))
    assert "then run `weft login` again" in reported
    assert "secret" not in reported
