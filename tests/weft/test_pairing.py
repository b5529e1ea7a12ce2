"""The first hour without a checkout: authority, hub, code, edge, and a record at the hub; by the commands alone."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.processes import Start, publish, weft
from tests.support.waiting import wait_until


def done(*arguments: object, answer: str | None = None) -> str:
    result = weft(*arguments, answer=answer)
    assert result.exception is None, result.exception
    return str(result.stdout)


def refused(*arguments: object, answer: str | None = None) -> str:
    result = weft(*arguments, answer=answer)
    assert result.exception is not None, result.output
    return str(result.exception)


@pytest.mark.slow
@pytest.mark.processes
def test_an_edge_is_paired_by_a_code_and_its_record_is_at_the_hub(start: Start, tmp_path: Path) -> None:
    port, mqtt = free_port(), free_port()
    hub_yaml, edge_yaml = tmp_path / "hub" / "hub.yaml", tmp_path / "edge" / "edge.yaml"
    url = f"https://127.0.0.1:{port}"
    hub_yaml.parent.mkdir()
    edge_yaml.parent.mkdir()
    done("ca", "init", tmp_path / "ca")
    done("hub", "init", hub_yaml, "--listen", f"127.0.0.1:{port}", "--ca", tmp_path / "ca", "--host", "127.0.0.1")
    hub_yaml.write_text(hub_yaml.read_text() + "processes: 1\nshards: 1\n")
    start("hub", hub_yaml)
    answer = json.loads(done("hub", "token", "pair", hub_yaml, "press-7", "--json", "--yes"))
    stored = [path.read_bytes() for path in (hub_yaml.parent / "store").rglob("*") if path.is_file()]
    assert not any(answer["code"].replace("-", "").encode() in each for each in stored)

    authority, token = hub_yaml.parent / "authority.crt", edge_yaml.parent / "press-7.token"
    given = (url, "--ca-file", authority, "--to", token)
    wrong = refused("edge", "pair", *given, answer="0000-0000-0000\n")
    assert "this code is not valid here: it is wrong, was used, has ended" in wrong
    assert not token.exists()
    done("edge", "pair", *given, answer=f"{answer['code'].lower()}\n")
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert [path.name for path in edge_yaml.parent.iterdir()] == ["press-7.token"], "nothing is left of the try before"
    assert "already exists" in refused("edge", "pair", *given, answer="x\n")
    again = refused("edge", "pair", url, answer["code"], "--ca-file", authority, "--to", tmp_path / "thief.token")
    assert "was used" in again

    done(
        "edge",
        "init",
        edge_yaml,
        "--node",
        "press-7",
        "--hub",
        url,
        "--token-file",
        token,
        "--listen",
        f"127.0.0.1:{mqtt}",
        "--disk",
        "1GiB",
        "--ca-file",
        authority,
    )
    edge_yaml.write_text(edge_yaml.read_text() + "http: null\n")
    start("edge", edge_yaml)
    publish(mqtt, "a", ["x"] * 3)

    admin = hub_yaml.parent / "admin.token"
    done("hub", "token", "add", hub_yaml, "ops", "--scope", "admin", "--to", admin)

    def records() -> Any:
        result = weft("hub", "status", hub_yaml, "--json", "--token-file", admin)
        if result.exception is not None:
            return 0  # the hub does not know the token yet
        return sum(each["written"]["records"] for each in json.loads(result.stdout)["shards"])

    wait_until(lambda: records() >= 3, what=records)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("http://hub.example.com",), "in clear text to http://hub.example.com. Use https, or add --plain-http"),
        (("hub.example.com",), "expected the URL of a hub"),
        (("https://other.example.com", "--config", "{config}"), "has no link to https://other.example.com; there"),
        (("https://hub.example.com", "--config", "{config}"), "links.cloud has no token_file. Add `token_file: "),
        (("http://127.0.0.1:{port}", "CODE", "--to", "{token}"), "The same command continues with the same token"),
    ],
)
def test_a_pairing_that_cannot_be_says_why(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    config, token = tmp_path / "edge.yaml", tmp_path / "token"
    config.write_text('node: n\ndata_dir: data\nlinks: {cloud: {to: "https://hub.example.com"}}\n')
    places = {"config": config, "port": free_port(), "token": token}
    assert sentence in refused("edge", "pair", *(each.format(**places) for each in arguments))
    assert not token.exists()
