"""The pages that say how to change Weft, followed to the letter on a copy of the code."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.house import PACKAGES, ROOT
from tests.support.processes import Node
from tests.support.waiting import PATIENCE_S

PAGE = ROOT / "docs" / "change" / "add-a-protocol.md"
BLOCK = re.compile(r"^```(diff|python|yaml) (\S+)\n(.*?)^```$", re.S | re.M)
SENT = re.compile(r"^    (plant/\S+ .*)$", re.M)

pytestmark = pytest.mark.slow


def copied(folder: Path) -> Path:
    """The product's packages, with the links that make them one."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def follow(page: str, folder: Path) -> None:
    """Make what a page says: new files, and lines that are changed."""
    for kind, name, text in BLOCK.findall(page):
        path = folder / name
        if kind != "diff":
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            continue
        lines = text.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        found = path.read_text()
        assert found.count(before) == 1, f"{name} does not have once:\n{before}"
        path.write_text(found.replace(before, after))


def test_a_protocol_is_a_folder_a_line_and_a_name(tmp_path: Path) -> None:
    page, code = PAGE.read_text(), copied(tmp_path / "code")
    follow(page, code)
    config = tmp_path / "edge.yaml"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config.write_text((code / "edge.yaml").read_text().replace(":2003", f":{port}").replace(":8080", ":0"))
    weft = ["env", "-C", str(code), sys.executable, "-m", "weft"]
    lines = SENT.findall(page)
    assert len(lines) == 2
    node = Node("edge", config, weft, popen=subprocess.Popen)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
            client.sendall("".join(f"{line}\n" for line in lines).encode())
            answers = b""
            while answers.count(b"\n") < len(lines):
                more = client.recv(100)
                assert more, answers
                answers += more
        assert answers == b"stored\n" * len(lines)
        assert node.json("status")["streams"]["telemetry"]["durable_end"] == len(lines)
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
            client.sendall(b"no/\xff/topic x\n")
            assert client.recv(100) == b"", "what cannot be stored is not answered"
    finally:
        assert node.stop() == 0
