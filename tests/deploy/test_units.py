"""The unit in ``deploy/``: systemd understands it, and it gives the node the folders that its configuration names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
