"""The table of commands: what it says of each is what the command says, and a list of commands imports none."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from tests.support.process_facts import HEAVY
from tests.support.waiting import PATIENCE_S
from weft.cli import cli
from weft.commands.groups import COMMANDS, Command, Group


def commands(group: Group, path: str = "weft") -> Iterator[tuple[str, Command]]:
    for name, entry in group.commands.items():
        if isinstance(entry, Group):
            yield from commands(entry, f"{path} {name}")
        else:
            yield f"{path} {name}", entry


ALL = dict(commands(COMMANDS))


def test_each_command_stands_in_the_table_once() -> None:
    places = Counter(entry.place for entry in ALL.values())
    assert [place for place, count in places.items() if count > 1] == []


@pytest.mark.parametrize("path", ALL)
def test_a_list_of_commands_says_what_the_command_says(path: str) -> None:
    """Cut at any width, as click cuts the docstring."""
    entry = ALL[path]
    command, listed = entry.load("name"), click.Command(None, help=entry.summary)
    rooms = range(20, 140)  # ./run fix writes the summaries
    assert [listed.get_short_help_str(room) for room in rooms] == [command.get_short_help_str(room) for room in rooms]


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


@pytest.mark.parametrize("arguments", [["--help"], ["hub", "--help"], ["hub", "table"], ["hub", "tale"]])
def test_a_list_of_commands_imports_none(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom weft.cli import cli\n"
        f"try: cli.main({arguments!r}, 'weft')\nexcept SystemExit: pass\n"
        "print(sorted(each for each in sys.modules if each.startswith(('weft.commands.', 'msgspec'))))"
    )
    assert run(code).splitlines()[-1] == "['weft.commands.groups']"


def test_the_heads_of_commands_import_nothing_heavy() -> None:
    """An edge has them without the libraries of hubs, and shows their help."""
    modules = sorted({f"weft.commands.{entry.place.partition(':')[0]}" for entry in ALL.values()})
    heavy = (*HEAVY, "pyspark")
    code = f"import sys\nimport {', '.join(modules)}\nprint([each for each in {heavy!r} if each in sys.modules])"
    assert run(code).strip() == "[]"


def test_a_shell_completes_from_the_table() -> None:
    complete = ShellComplete(cli, {}, "weft", "_WEFT_COMPLETE")
    found = {each.value: each.help for each in complete.get_completions(["hub"], "sta")}
    assert found == {"status": "Show every edge that the hub HUB knows,..."}
    assert "--help" in [each.value for each in complete.get_completions(["hub"], "--")]
    assert complete.get_completions(["no-such-command"], "sta") == []


def test_a_name_that_is_usual_elsewhere_names_the_right_one() -> None:
    result = CliRunner().invoke(cli, ["hub", "token", "revoke"], prog_name="weft")
    assert str(result.exception) == "`weft hub token revoke` is called `weft hub token remove`"


def test_an_unknown_command_names_the_nearest() -> None:
    said = CliRunner().invoke(cli, ["hub", "nodse"], prog_name="weft").output
    assert "No such command 'nodse'. Did you mean 'nodes'?" in said
    assert (
        "No such command 'xyzzy'. See weft hub --help."
        in CliRunner().invoke(cli, ["hub", "xyzzy"], prog_name="weft").output
    )
