"""``./run`` on machines that cannot run Weft: one sentence on standard error, exit status 2, and nothing done.

And ``.ci/run``: what of the machine reaches the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "cat", "dirname", "env", "head", "mkdir", "sed", "sha256sum", "tr")


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
        machine,
        done,
        "python3 is a 32-bit Python, for which some of Weft's dependencies have no wheels; "
        "install a 64-bit operating system (Raspberry Pi OS: the 64-bit edition)",
    )


def test_an_unknown_command(machine: Path) -> None:
    done = run(machine, "fly")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("usage: ./run ")
    assert done.stderr.endswith("run: unknown command fly\n")


NOTES_CALLS = f"""\
#!/bin/sh
case "$1" in -c) exec {sys.executable} "$@" ;; *) echo "$*" >>"$HOME/calls" ;; esac
[ "$2" != "$FAILS" ]
"""
"""Stands for the Python of ``.venv``: computes, but installs and tests nothing."""


def test_the_engine_of_amqp_1_0_is_compiled_where_that_can_be(machine: Path) -> None:
    """Once; and elsewhere a line says why its tests are skipped."""

    def calls() -> list[str]:
        found = (machine / "calls").read_text().splitlines()
        (machine / "calls").unlink()
        return [line.split()[1] for line in found if "amqp1" in line or "tests.stage" in line]

    (machine / ".venv/bin").mkdir(parents=True)
    programs = {".venv/bin/python": NOTES_CALLS, "bin/compiler": "#!/bin/sh\nread -r _\n"}
    for program, text in ((machine / name, text) for name, text in programs.items()):
        program.write_text(text)
        program.chmod(0o755)
    done = run(machine, "test", CC="no-compiler")
    assert (done.returncode, done.stderr, calls()) == (0, "", ["tests.stage"])
    assert "AMQP 1.0 is not tested here" in done.stdout
    assert "apt install gcc python3-dev" in done.stdout
    done = run(machine, "test", CC="compiler", FAILS="pip")
    assert (done.returncode, done.stderr, calls()) == (0, "", ["pip", "tests.stage"])
    assert "its engine could not be compiled" in done.stdout
    assert run(machine, "test", CC="compiler -O2").returncode == 0
    assert calls() == ["pip", "tests.stage"]
    assert run(machine, "test", CC="compiler").returncode == 0
    assert calls() == ["tests.stage"]


ONE_AT_A_TIME = f"""\
#!/bin/sh
case "$1" in -c) exec {sys.executable} "$@" ;; esac
mkdir "$HOME/busy" || exit 1
echo "$*" >>"$HOME/calls"
sleep 0.3
rmdir "$HOME/busy"
exit "$FAILS"
"""
"""Stands for the Python of ``.venv``, and fails where another installs into the same environment."""


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
def test_of_commands_at_once_one_installs_and_the_others_wait(machine: Path) -> None:
    python = machine / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(ONE_AT_A_TIME)
    python.chmod(0o755)
    for tool in ("flock", "rmdir", "sleep"):
        (machine / "bin" / tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is missing here"))

    def three(fails: str) -> list[int]:
        variables = {"PATH": str(machine / "bin"), "HOME": str(machine), "CC": "no-compiler", "FAILS": fails}
        at_once = [
            subprocess.Popen([machine / "run", "setup"], env=variables, stdout=subprocess.DEVNULL) for _ in "123"
        ]
        return [process.wait(PATIENCE_S) for process in at_once]

    assert three(fails="4") == [4, 4, 4]
    assert len((machine / "calls").read_text().splitlines()) == 3, "each tries, since none succeeded"
    assert three(fails="0") == [0, 0, 0]
    assert len((machine / "calls").read_text().splitlines()) == 4


RECORDS = """\
#!/bin/sh
called="called $*"
[ ! -e "$called" ] || called="$called again"
{
  for name in cc gcc-12 java go node mvn helm python3 sh; do command -v "$name" >/dev/null && echo "has $name"; done
  env
} >"$called"
"""
"""Stands for ``./run`` and notes each call in a file: the linters run beside the tests."""
TOOLCHAIN = ("cc", "gcc-12", "java", "go", "node", "mvn", "helm")
CI_TOOLS = ("bash", "cat", "dirname", "env", "find", "ln", "mkdir", "mktemp", "nice", "rm", "sh")
"""What ``.ci/run`` needs of a machine; all its programs would take seconds to link."""


@pytest.fixture
def ci_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools")
    for name in CI_TOOLS:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def test_ci_clears_the_variables_and_runs_the_quick_tests_without_compiler_and_java(
    tmp_path: Path, ci_tools: Path
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / ".ci/base").write_text("cd0ea74b\n")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for program in ("run", ".venv/bin/python"):
        (tmp_path / program).write_text(RECORDS)
        (tmp_path / program).chmod(0o755)
    (tmp_path / "programs").mkdir()
    for name in (*TOOLCHAIN, "python3", "dpkg"):  # dpkg: every broker is installed
        (tmp_path / "programs" / name).touch(0o755)
    passed = {"CI": "true", "PIP_INDEX_URL": "http://index.example", "https_proxy": "http://proxy", "LANG": "C.UTF-8"}
    environment = {
        **passed,
        "PATH": f"{tmp_path / 'programs'}:{ci_tools}",
        "TMPDIR": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
        "JAVA_HOME": "/usr",
        "AWS_SECRET_ACCESS_KEY": "of the machine",
        "PYTHONPATH": "/",
    }
    subprocess.run(["bash", ".ci/run"], cwd=tmp_path, env=environment, check=True, timeout=PATIENCE_S)
    calls = {path.name: set(path.read_text().splitlines()) for path in tmp_path.glob("called *")}
    ahead, near = "called -m tests.support.third_party", "called -m tests.changed --near cd0ea74b"
    classes = "called -m tests.support.spark_classes"
    slow, counted, again = "called test --all", "called bench count", "called setup --all"
    assert calls.keys() == {"called setup", "called lint", "called test", ahead, classes, near, again, slow, counted}
    for call in calls.values():
        assert {f"{name}={value}" for name, value in passed.items()} <= call
        assert not [line for line in call if line.startswith(("PYTHON", "JAVA_", "AWS_"))]
    has = {name: {line for line in call if line.startswith("has ")} for name, call in calls.items()}
    for name in (again, slow, counted, ahead, classes, near):
        assert {f"has {name}" for name in (*TOOLCHAIN, "python3", "sh")} <= has.pop(name)
    for name, found in has.items():
        assert found == {"has python3", "has sh"}, name
    left = {name for name in os.listdir(tmp_path) if not name.startswith("called ")}
    assert left == {".ci", ".venv", "programs", "run"}


@pytest.mark.parametrize("failing", ["lint", "test", "test --all"])
def test_ci_fails_where_one_of_its_parts_fails(failing: str, tmp_path: Path, ci_tools: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "run").write_text(f'#!/bin/sh\necho "$*"\n[ "$*" != "{failing}" ] || exit 3\n')
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "dpkg").touch(0o755)
    environment = {"PATH": f"{tmp_path}:{ci_tools}", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", ".ci/run"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 3
    said = done.stdout.splitlines()
    assert {"lint", "test"} <= set(said), "both are told, whichever fails"
    assert ("test --all" in said) == (failing == "test --all")
