"""``./run`` on machines that cannot run Weft: one sentence on standard error, exit status 2, and nothing done."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "cat", "dirname", "env", "head", "sed", "sha256sum", "tr")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout, as far as ``./run`` looks at it before it installs, and a folder of programs without Python."""
    for name in ("run", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is missing here"))
    return tmp_path


def add_python(machine: Path, name: str, as_if: str) -> None:
    """Put a Python into the machine that is this one, but for what ``as_if`` changes before the code of ``-c`` runs."""
    script = machine / "bin" / name
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import sys; {as_if}; exec(sys.argv[1])' \"$2\"\n")
    script.chmod(0o755)


def run(machine: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": str(machine / "bin"), "HOME": str(machine), **environment}
    return subprocess.run(
        [machine / "run", command], env=variables, check=False, capture_output=True, text=True, timeout=60
    )


def check_refused(machine: Path, done: subprocess.CompletedProcess[str], sentence: str) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"run: {sentence}\n")
    assert not (machine / ".venv").exists()


WRONG_PYTHON = "needs Python 3.11 to 3.13 with venv (Debian: apt install python3-venv); set WEFT_PYTHON to point at one"


@pytest.mark.parametrize("command", ["demo", "test", "setup"])
def test_without_python(machine: Path, command: str) -> None:
    check_refused(machine, run(machine, command), WRONG_PYTHON)


@pytest.mark.parametrize(
    "as_if",
    [
        "sys.version_info = (3, 10, 12)",
        "sys.version_info = (3, 14, 0)",
        'sys.modules["ensurepip"] = None',  # Debian without python3-venv
    ],
)
def test_with_a_python_that_will_not_do(machine: Path, as_if: str) -> None:
    add_python(machine, "python3", as_if)
    check_refused(machine, run(machine, "test"), WRONG_PYTHON)
    check_refused(machine, run(machine, "test", WEFT_PYTHON="python3"), WRONG_PYTHON)


def test_on_a_32_bit_system(machine: Path) -> None:
    add_python(machine, "python3", "sys.maxsize = 2**31 - 1")
    done = run(machine, "demo")
    check_refused(
        machine, done,
        "python3 is a 32-bit Python, for which some of Weft's dependencies have no wheels; "
        "install a 64-bit operating system (Raspberry Pi OS: the 64-bit edition)",
    )  # fmt: skip


def test_an_unknown_command(machine: Path) -> None:
    done = run(machine, "fly")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("usage: ./run ")
    assert done.stderr.endswith("run: unknown command fly\n")
