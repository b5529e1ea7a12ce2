"""A hub with an issuer of tokens in its file: what its commands say."""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.issuer import AUDIENCE, ISSUER, Key, claims, key_of, key_set, signed
from tests.support.mqtt_client import BlockingPaho
from tests.support.processes import Start, weft
from tests.support.waiting import wait_until

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


EDGE = """\
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
    (tmp_path / "edge.yaml").write_text(EDGE.format(mqtt=mqtt, hub=hub))
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
