"""The unit in ``deploy/``: systemd understands it, and it gives the node the folders that its configuration names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.support.third_party import HADOLINT
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "weft-edge.service"


def lines_of(unit: Path) -> list[tuple[str, str]]:
    lines = (line for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#"))
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


@pytest.mark.parametrize("name", ["weft-edge.service", "weft-hub.service"])
def test_systemd_has_nothing_to_say_of_it(tmp_path: Path, name: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / name
    unit.write_text((ROOT / "deploy" / name).read_text().replace("/opt/weft/bin/weft", sys.executable))
    # Without its own units folder it would also judge those of this machine.
    alone = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=alone,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["weft-edge.service", "weft-hub.service"])
def test_an_intruder_in_the_process_has_little(name: str) -> None:
    """systemd's own figure: 10 is a unit that gives its process everything, and 2 and less is what it calls good."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=18", str(ROOT / "deploy" / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout[-200:]


@pytest.mark.parametrize("name", ["weft-edge.service", "weft-hub.service"])
def test_a_node_takes_no_machine_with_it_and_leaves_no_memory_on_disk(name: str) -> None:
    settings = dict(lines_of(ROOT / "deploy" / name))
    assert settings["MemoryMax"].endswith("%")
    assert settings["LimitCORE"] == "0"
    assert int(settings["TasksMax"]) > 0


@pytest.mark.parametrize("name", ["weft-edge.service", "weft-hub.service"])
def test_a_reload_is_the_signal_that_the_node_takes(name: str) -> None:
    assert ("ExecReload", "/bin/kill -HUP $MAINPID") in lines_of(ROOT / "deploy" / name)


@pytest.mark.parametrize(("folder", "setting"), [("/var/lib", "StateDirectory"), ("/run", "RuntimeDirectory")])
def test_folders_of_the_examples_are_the_unit_s(folder: str, setting: str) -> None:
    given = f"{folder}/{dict(lines_of(UNIT))[setting]}"
    text = (ROOT / "config" / "examples" / "edge-full.yaml").read_text()
    named = [word.strip("`'\",") for word in text.replace("unix:", " ").split() if word.startswith(f"{folder}/")]
    assert named
    assert all(word == given or word.startswith(f"{given}/") for word in named), named


def test_an_image_is_made_of_named_releases() -> None:
    recipe = (ROOT / "deploy" / "Containerfile").read_text()
    bases = dict(re.findall(r"^ARG (\w+)=(\S+)$", recipe, re.MULTILINE))
    for base in re.findall(r"^FROM (\S+) AS", recipe, re.MULTILINE):
        if base.startswith("${"):
            # Of a release line, the newest there is, since one that is named to its end gets no more mends.
            assert re.search(r":\d+\.\d+-\w+-\w+$|@sha256:[0-9a-f]{64}$", bases[base[2:-1]])
    assert "apt-get upgrade" in recipe, "the base has its mends as of the build"
    installs = [line for line in recipe.splitlines() if "pip install" in line]
    assert installs
    assert all("--no-deps" in line and ("--require-hashes" in line or "--no-index" in line) for line in installs)
    users = re.findall(r"^USER (\S+)$", recipe, re.MULTILINE)
    assert users == re.findall(r"useradd --system --uid (\d+)", recipe)
    # Both images end from the stage that sets the user.
    assert re.findall(r"^FROM base AS (\w+)$", recipe.split("\nUSER ")[1], re.MULTILINE) == ["edge", "hub"]


@pytest.mark.slow
def test_a_reader_of_container_files_has_nothing_to_say() -> None:
    try:
        program = str(HADOLINT.obtain() / "bin" / "hadolint")
    except LookupError as error:
        pytest.skip(str(error))
    # DL3059 wants fewer layers; these are of stages that no image keeps.
    command = [
        program,
        "--no-color",
        "--failure-threshold=style",
        "--ignore=DL3059",
        str(ROOT / "deploy/Containerfile"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


# --- ``docs/how-to/run-under-systemd.md``, followed with the units' users, folders and modes


HERE = Path(__file__).parent
UNDER_SYSTEMD_ROOT = HERE.parents[1]
PAGE = UNDER_SYSTEMD_ROOT / "docs" / "how-to" / "run-under-systemd.md"
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


@pytest.mark.processes
@pytest.mark.timeout(180)
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
        str(UNDER_SYSTEMD_ROOT),
        sys.executable,
        "bash",
        str(HERE / "follow_the_page.sh"),
        str(tmp_path / "page"),
        sys.executable,
    ]
    path = f"{HERE / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=UNDER_SYSTEMD_ROOT,
        env={"PATH": path, "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "followed to its end" in done.stdout


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_the_commands_that_are_followed_are_the_page_s() -> None:
    followed = (HERE / "follow_the_page.sh").read_text().replace("/opt/weft/bin/weft", "weft").replace("sudo ", "")
    said = [line.strip() for text in blocks("sh") for line in text.splitlines()]
    done_otherwise = ("venv", "pip install", "ln -s", "install -m 644 deploy", "weft edge run")
    for line in said:
        command = line.replace("sudo ", "")
        if not any(word in line for word in done_otherwise):
            assert command in followed, line
