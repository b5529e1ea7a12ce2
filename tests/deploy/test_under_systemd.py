"""``docs/how-to/run-under-systemd.md``, followed with the units' users, folders and modes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo.fabric import free_port

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "how-to" / "run-under-systemd.md"
TOOLS = ("unshare", "setpriv", "systemd-sysusers", "useradd", "usermod")
PUBLISH = """
import sys
import paho.mqtt.publish as mqtt

name, password = sys.argv[1:] or ("gateway", "secret")
mqtt.single("plant/press/m1/telemetry", "21.5", qos=1, hostname="127.0.0.1", port=%d,
            auth={"username": name, "password": password})
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def make_page_folder(folder: Path) -> None:
    """The page's configurations with free ports, and a device."""
    hub_port, mqtt_port, http_port = free_port(), free_port(), free_port()
    folder.mkdir()
    for block in blocks("yaml"):
        text = block.replace(":8090", f":{hub_port}").replace(":1883", f":{mqtt_port}")
        name = Path(text.split()[1]).name
        (folder / name).write_text(text + (f"http: {{bind: 127.0.0.1:{http_port}}}\n" if name == "edge.yaml" else ""))
    (folder / "publish.py").write_text(PUBLISH % mqtt_port)


@pytest.mark.slow
def test_the_page_works_with_the_units_users_and_modes(tmp_path: Path) -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing or TOOLS)}")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no private mount namespace")
    room = tmp_path / "room"
    room.mkdir()
    make_page_folder(tmp_path / "page")
    command = [
        "unshare",
        "-m",
        "--kill-child",
        "bash",
        str(HERE / "room.sh"),
        str(room),
        str(ROOT),
        sys.executable,
        "bash",
        str(HERE / "follow_the_page.sh"),
        str(tmp_path / "page"),
        sys.executable,
    ]
    path = f"{HERE / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": path, "LANG": "C.UTF-8"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "followed to its end" in done.stdout


def test_the_commands_that_are_followed_are_the_page_s() -> None:
    followed = (HERE / "follow_the_page.sh").read_text().replace("/opt/weft/bin/weft", "weft").replace("sudo ", "")
    said = [line.strip() for text in blocks("sh") for line in text.splitlines()]
    done_otherwise = ("venv", "pip install", "ln -s", "install -m 644 deploy", "weft edge run")
    for line in said:
        command = line.replace("sudo ", "")
        if not any(word in line for word in done_otherwise):
            assert command in followed, line
