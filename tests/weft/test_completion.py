"""Completion and manual pages: made from the command line itself, and readable for shells and groff."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from docs.tools.commands import contexts
from docs.tools.manuals import manuals
from tests.support.processes import weft
from weft.cli import cli
from weft.commands.completion import SHELLS, VARIABLE


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_understands_its_code(shell: str, tmp_path: Path) -> None:
    code = weft("completion", shell).output
    assert VARIABLE in code
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "code").write_text(code)
    done = subprocess.run([shell, "-n", tmp_path / "code"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_shell_is_refused_with_the_ones_that_there_are() -> None:
    assert "'bash', 'zsh', 'fish'" in str(weft("completion", "tcsh").exception)


@pytest.mark.parametrize(
    ("words", "begun", "wanted"),
    [
        ([], "e", {"edge"}),
        (["edge"], "in", {"init"}),
        (["edge", "init"], "--gen", {"--generate-password"}),
        (["hub", "token"], "a", {"add"}),
        (["edge", "run", "--log-level"], "w", {"warning"}),
    ],
)
def test_commands_options_and_choices_are_completed(words: list[str], begun: str, wanted: set[str]) -> None:
    found = ShellComplete(cli, {}, "weft", VARIABLE).get_completions(words, begun)
    assert wanted <= {each.value for each in found}


def test_a_configuration_is_completed_as_a_file() -> None:
    found = ShellComplete(cli, {}, "weft", VARIABLE).get_completions(["edge", "check"], "ed")
    assert [each.type for each in found] == ["file"]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return manuals("1.2.3")


def test_every_command_has_a_page_with_its_options(pages: dict[str, str]) -> None:
    paths = [context.command_path for context in contexts("weft", cli)]
    assert list(pages) == [f"{path.replace(' ', '-')}.1" for path in paths]
    assert len(pages) > 80
    page = pages["weft-edge-init.1"]
    assert r"\fB\-\-generate\-password\fP" in page
    assert "weft 1.2.3" in page


def test_groff_has_nothing_to_say_of_a_page(pages: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    files = [tmp_path / name for name in pages]
    done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-z", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_example_keeps_its_lines_and_its_characters(pages: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-bcu", "-rLL=100n"],
        input=pages["weft-edge-init.1"],
        capture_output=True,
        text=True,
        check=True,
    )
    shown = " ".join(done.stdout.split())
    assert r"--stream 'telemetry=plant/#' --hub https://hub.example.com \ --token-file press-7.token" in shown
