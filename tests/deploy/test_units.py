"""The unit in ``deploy/``: systemd understands it, and it gives the node the folders that its configuration names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
        capture_output=True, text=True, timeout=30, check=False, env=alone,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


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
