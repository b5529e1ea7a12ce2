"""The quick tour of the README, followed to the letter (with free ports): processes, a message, Spark, the proof."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import paho.mqtt.publish as mqtt
import pytest

from weft.demo.fabric import free_port, get_json

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PORTS = (1883, 8080, 8090)
WAIT_S = 30.0
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
COLLECT = """
query.processAllAvailable()
query.stop()
"""


def tour(ports: dict[int, int]) -> list[tuple[str, str]]:
    """(language, text) of the tour's blocks in their order."""
    text = (ROOT / "README.md").read_text().split("## A quick tour")[1].split("\n## ")[0]
    for port, free in ports.items():
        text = re.sub(rf"(?<=127\.0\.0\.1:){port}\b|(?<=-p ){port}\b", str(free), text)
    return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


def wait_for(url: str, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while what not in str(_answer(url)):
        assert time.monotonic() < deadline, f"{url} does not say {what}: {_answer(url)}"
        time.sleep(0.1)


def _answer(url: str) -> object:
    try:
        return get_json(url)
    except OSError as error:
        return error


def publish(command: str) -> None:
    """What mosquitto_pub would do, for machines without it."""
    words = shlex.split(command)[1:]
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given.keys() == {"-p", "-q", "-t", "-m"}
    mqtt.single(given["-t"], given["-m"], qos=int(given["-q"]), hostname="127.0.0.1", port=int(given["-p"]))


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(180)
def test_the_quick_tour_does_what_it_says(tmp_path: Path) -> None:
    ports = {port: free_port() for port in PORTS}
    running: list[subprocess.Popen[bytes]] = []
    said = ""
    try:
        for language, text in tour(ports):
            if language == "yaml":
                name = text.split()[1]
                (tmp_path / name).write_text(text)
            elif language == "python":
                wait_for(f"http://127.0.0.1:{ports[8090]}/v1/streams", "'records': 2")
                said += run([sys.executable, "-c", text + COLLECT], tmp_path)
            for command in text.splitlines() if language == "sh" else ():
                if " run " in command:
                    running.append(subprocess.Popen(shlex.split(command), cwd=tmp_path, env=ENVIRONMENT))
                elif command.startswith("mosquitto_pub"):
                    wait_for(f"http://127.0.0.1:{ports[8080]}/status", "'connected'")
                    publish(command)
                elif command.startswith("curl"):
                    wait_for(command.split()[1], "complete_up_to")
                else:
                    said += run(["sh", "-c", command], tmp_path)
    finally:
        for process in running:
            process.terminate()
            process.wait(WAIT_S)
    assert re.search(r"\|\s*press\|\s*m1\|\s*1\|", said)
    assert re.search(r"Batch: 0.*plant/press/m2", said, re.DOTALL)
    assert "good: every record is in the log once" in said
