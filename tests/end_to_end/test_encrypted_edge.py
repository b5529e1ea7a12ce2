"""An edge with an encrypted data directory: killed, it loses nothing, and nothing in the folder can be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.support.mqtt_client import BlockingPaho
from tests.support.processes import EdgeProcess, weft

SECRETS = ("PAYLOAD-4711", "plant/quench", "press-client-9", "furnace_readings", "retained-secret", "idle-client-3")
KEYS = ("11" * 32, "22" * 32)


def config(folder: Path) -> str:
    return (
        f"node: press-shop-7\ndata_dir: {folder / 'data'}\n"
        f"listeners: {{mqtt: {{bind: 127.0.0.1:{free_port()}}}}}\nhttp: {{bind: 127.0.0.1:{free_port()}}}\n"
        f"encryption: {{key_file: {folder / 'key'}}}\n"
        'streams: {furnace_readings: {from: "plant/quench/#"}}\n'
    )


def keep_key(folder: Path, *keys: str) -> None:
    path = folder / "key"
    path.write_text("\n".join(keys))
    path.chmod(0o600)


def found_in(directory: Path) -> set[str]:
    """Return what a search through the bytes of all files finds."""
    found = set()
    for path in directory.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found |= {f"{word} in {path.name}" for word in SECRETS if word.encode() in data}
    return found


def records(edge: EdgeProcess) -> list[str]:
    shown = weft("edge", "query", edge.config, "SELECT payload FROM furnace_readings ORDER BY seq", "--json")
    assert shown.exit_code == 0, shown.output
    return [f"PAYLOAD-4711-{number}" for number in range(400) if f'PAYLOAD-4711-{number}"' in shown.output]


def send(edge: EdgeProcess, first: int, end: int) -> None:
    """Publish with a persistent session, retained messages included; each is acknowledged."""
    client = BlockingPaho("press-client-9", clean_session=False)
    client.connect(edge.node.mqtt_port)
    client.subscribe(("plant/quench/orders/#", 1))
    for number in range(first, end):
        client.publish(f"plant/quench/{number}", f"PAYLOAD-4711-{number}")
    client.publish("plant/quench/last", "retained-secret", retain=True)
    client.close()


def test_a_killed_encrypted_edge_has_every_record_and_shows_none(tmp_path: Path) -> None:
    keep_key(tmp_path, KEYS[0])
    with EdgeProcess(tmp_path, config(tmp_path)) as edge:
        edge.start()
        idle = BlockingPaho("idle-client-3", clean_session=False)
        idle.connect(edge.node.mqtt_port)
        idle.subscribe(("plant/quench/#", 1))
        idle.close()
        send(edge, 0, 50)
        assert found_in(tmp_path / "data") == set()
        edge.kill()
        assert found_in(tmp_path / "data") == set()

        # A new key before the old one; the node takes it while it runs.
        edge.start()
        keep_key(tmp_path, KEYS[1], KEYS[0])
        assert weft("edge", "reload", edge.config).exit_code == 0
        keep_key(tmp_path, KEYS[1])
        send(edge, 50, 100)
        edge.kill()
        edge.start()
        assert records(edge) == [f"PAYLOAD-4711-{number}" for number in range(100)]
        reader = BlockingPaho()
        reader.connect(edge.node.mqtt_port)
        reader.subscribe(("plant/quench/last", 1))
        assert reader.message().payload == b"retained-secret"
        reader.close()
        assert edge.stop() == 0
        assert found_in(tmp_path / "data") == set()


def test_without_the_key_nothing_starts_and_nothing_changes(tmp_path: Path) -> None:
    keep_key(tmp_path, KEYS[0])
    with EdgeProcess(tmp_path, config(tmp_path)) as edge:
        edge.start()
        send(edge, 0, 3)
        assert edge.stop() == 0
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    keep_key(tmp_path, KEYS[1])
    for command in ("check", "run"):
        refused = weft("edge", command, edge.config)
        assert "holds another key" in refused.output + str(refused.exception)
    (tmp_path / "key").unlink()
    refused = weft("edge", "run", edge.config)
    assert "cannot be used" in str(refused.exception)
    plain = "".join(line for line in edge.config.read_text().splitlines(keepends=True) if "encryption" not in line)
    edge.config.write_text(plain)
    refused = weft("edge", "check", edge.config)
    assert "is encrypted" in refused.output
    assert weft("edge", "run", edge.config).exit_code != 0
    assert weft("log", "dump", tmp_path / "data").exit_code != 0
    assert {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()} == before


def test_a_command_reads_a_copy_with_the_key_file_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_key(tmp_path, KEYS[0])
    with EdgeProcess(tmp_path, config(tmp_path)) as edge:
        edge.start()
        send(edge, 0, 3)
        assert edge.stop() == 0
    copy = tmp_path / "copy"
    os.rename(tmp_path / "data", copy)
    monkeypatch.setenv("WEFT_KEY_FILE", str(tmp_path / "key"))
    dumped = weft("log", "dump", copy)
    assert dumped.exit_code == 0, dumped.output
    assert "furnace_readings" in dumped.output
