"""The command line: what scripts rely on (exit status, JSON, no tracebacks) and what people read."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from docs.tools.commands import contexts
from docs.tools.manuals import manuals
from docs.tools.prose import FOLDERS, ROOT, Text, texts
from tests.support import forked
from tests.support.process_facts import HEAVY
from tests.support.processes import weft as processes_weft
from tests.support.waiting import PATIENCE_S
from weft.cli import cli
from weft.commands.completion import SHELLS, VARIABLE
from weft.commands.groups import COMMANDS, Command, Group
from weft.commands.running import RunningHub, get_status, whole
from weft.hub_api.edges import EdgesAnswer
from weft.hub_api.tokens import TokensAnswer
from weft.output import Failed, counted, print_facts, print_table
from weft.text.rows import print_rows

CONFIG = "node: press-shop-7\ndata_dir: data\nstreams: {telemetry: {from: 'plant/{line}/telemetry'}}\n"
FREE = CONFIG + "listeners: {mqtt: {bind: '127.0.0.1:0'}}\nhttp: null\n"
"""The same, whatever else runs on this machine."""


def weft(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-m", "weft", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **environment},
    )


@pytest.fixture
def edge_yaml(tmp_path: Path) -> Path:
    path = tmp_path / "edge.yaml"
    path.write_text(FREE)
    return path


def test_version_and_help() -> None:
    assert weft("--version").stdout.startswith("weft ")
    text = weft("--help").stdout
    for command in ("edge", "hub", "config", "log", "audit", "spark"):
        assert f"\n  {command} " in text


@pytest.mark.parametrize(
    ("arguments", "full", "status"),
    [(("--version",), "stdout", 1), (("edge", "fly"), "stderr", 2), (("edge", "check", "missing.yaml"), "stderr", 2)],
)
def test_output_that_cannot_be_written_does_not_hide_the_exit_status(
    arguments: tuple[str, ...], full: str, status: int
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as no_space:
        done = subprocess.run(
            [sys.executable, "-m", "weft", *arguments],
            check=False,
            text=True,
            timeout=PATIENCE_S,
            env=environment,
            stdout=no_space if full == "stdout" else subprocess.PIPE,
            stderr=no_space if full == "stderr" else subprocess.PIPE,
        )
    assert done.returncode == status
    if full == "stdout":
        assert done.stderr.startswith("weft: ")
        assert "No space left on device" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_good_configuration(edge_yaml: Path) -> None:
    assert "is good: node press-shop-7, 1 stream, 0 links\n" in weft("edge", "check", str(edge_yaml)).stdout
    facts = json.loads(weft("edge", "check", str(edge_yaml), "--json").stdout)
    assert facts["streams"] == {"telemetry": ["plant/{line}/telemetry"]}
    assert not (edge_yaml.parent / "data").exists(), "a check makes nothing"


def test_a_wrong_configuration_is_exit_status_2_and_one_line_per_error(edge_yaml: Path) -> None:
    edge_yaml.write_text("node: a\ndata_dir: data\nstreams:\n  telemetry:\n    from: 3\ncommit_interval: 10 sec\n")
    done = weft("edge", "check", str(edge_yaml))
    assert done.returncode == 2
    assert done.stdout == ""
    assert [line.removeprefix(str(edge_yaml)) for line in done.stderr.removeprefix("weft: ").splitlines()] == [
        ':5: streams.telemetry.from: expected an MQTT filter such as "plant/{line}/#", got 3',
        ':6: commit_interval: expected a duration such as 250ms, 10s or 1h30m, got "10 sec". Did you mean 10s?',
    ]


@pytest.mark.parametrize("arguments", [("edge", "fly"), ("edge", "check"), ("nothing",), ("config", "schema", "moon")])
def test_wrong_usage_is_exit_status_2(arguments: tuple[str, ...]) -> None:
    done = weft(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_node_that_is_not_running_is_exit_status_1_and_a_sentence(edge_yaml: Path) -> None:
    edge_yaml.write_text(CONFIG + "http: {bind: '127.0.0.1:1'}\n")
    done = weft("edge", "status", str(edge_yaml))
    assert done.returncode == 1
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["edge", "hub"])
def test_schemas_are_printed(kind: str) -> None:
    assert json.loads(weft("config", "schema", kind).stdout)["$defs"]


def test_ctrl_c_while_the_command_line_is_loaded_prints_nothing() -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'weft.config': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from weft.__main__ import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_command_line_of_an_edge_loads_nothing_heavy(edge_yaml: Path) -> None:
    code = (
        "import sys\nfrom weft.cli import main\n"
        "try: main(['edge', 'check', sys.argv[1]])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print([m for m in ('pyarrow', 'numpy', 'deltalake', 'obstore', 'pyspark', 'pandas') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(edge_yaml)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_default_port_in_use_is_told_as_the_default_and_named_with_no_line(tmp_path: Path) -> None:
    edge_yaml = tmp_path / "edge.yaml"
    edge_yaml.write_text("node: a\ndata_dir: data\nhttp: null\nstreams: {t: {from: a}}\n")
    with socket.socket() as mqtt:
        with contextlib.suppress(OSError):  # taken by another program is as good
            mqtt.bind(("127.0.0.1", 1883))
            mqtt.listen(1)
        done = weft("edge", "check", str(edge_yaml))
    assert done.returncode == 2
    shown = done.stderr.splitlines()
    assert shown[0] == (
        f"weft: {edge_yaml}: listeners.mqtt.bind: its default cannot be used: cannot listen at 127.0.0.1:1883: address "
        "already in use. Choose another, or stop the program that has it (`ss -ltnp 'sport = :1883'`)"
    ), "an error comes before the warnings"
    assert shown[1].startswith("warning: ")


def test_a_node_that_ends_within_its_answer_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as node:

        def break_off() -> None:
            connection, _ = node.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HT")

        ending = threading.Thread(target=break_off)
        ending.start()
        with pytest.raises(Failed, match="does not answer"):
            get_status(f"127.0.0.1:{node.getsockname()[1]}", "/status")
        ending.join()


@pytest.mark.parametrize("cursors", [["a", "a"], ["a", "b", "a"]])
def test_a_list_that_does_not_go_on_ends_the_command(monkeypatch: pytest.MonkeyPatch, cursors: list[str]) -> None:
    answers = iter([EdgesAnswer(edges=[], next_after=cursor) for cursor in cursors])
    monkeypatch.setattr(RunningHub, "_answer", lambda *_: next(answers))
    with pytest.raises(Failed, match="the list of edges does not continue after 'a'"):
        whole("edges", RunningHub("http://127.0.0.1:1").edges)


def test_the_pages_of_a_list_are_joined_with_what_the_last_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(
        [
            TokensAnswer(tokens=[token], next_after=cursor)  # type: ignore[list-item]
            for token, cursor in (("a", "a"), ("b", None))
        ]
    )
    monkeypatch.setattr(RunningHub, "_answer", lambda *_: next(answers))
    found: Any = whole("tokens", RunningHub("http://127.0.0.1:1").tokens)
    assert (found.tokens, found.next_after) == (["a", "b"], None)


CONSTANT = re.compile(r'    \S*: f?".*",$|_?[A-Z_]+ = f?".*"$').match
"""A line of the module with a text that messages are made of: a value of a table, or a constant."""


def test_every_command_that_a_message_names_exists_with_its_options() -> None:
    """Who follows a message pastes its command: the path of subcommands is that of the parser, and what stands behind
    it is all that the command needs. A command alone is a name."""
    known = {context.command_path: context for context in contexts("weft", cli)}
    groups = {context.command_path for context in contexts("weft", cli) if isinstance(context.command, click.Group)}
    named = 0
    for folder in sorted({*FOLDERS} - {"bench", "docs", "examples", "tests"}):
        for path in (each for each in (ROOT / folder).rglob("*.py") if each.resolve() == each):
            if "`weft " not in (source := path.read_text()):
                continue  # to tell the messages of a file from its other text takes much longer than to read it
            constants = [Text(at, "message", line) for at, line in enumerate(source.splitlines(), 1) if CONSTANT(line)]
            for text in (each for each in (*texts(source), *constants) if each.kind == "message"):
                for code in re.findall(r"`(weft [a-z][^`]*)`", text.text):
                    words, command = code.split()[1:], "weft"
                    while command in groups and words and not words[0].startswith(("-", "X")):
                        command += f" {words.pop(0)}"
                    place = f"{path.relative_to(ROOT)}:{text.line}: {code}"
                    assert command in known, place
                    if words and words != ["--help"] and "--{}" not in words:
                        assert pasted(known[command], words) == ([], []), place
                    named += 1
    assert named > 100


def pasted(context: click.Context, words: list[str]) -> tuple[list[str], list[str]]:
    """What a command line lacks, and what it has too much. An option that the command does not know, or that lacks its
    value, raises."""
    given, more, _ = context.command.make_parser(context).parse_args(list(words))
    lacking = [each for each in context.command.params if each.required and given.get(str(each.name)) in (None, ())]
    return [str(each.name) for each in lacking], more


# --- The table of commands: what it says of each is what the command says, and a list of commands imports none


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


# --- Completion and manual pages: made from the command line itself, and readable for shells and groff


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_understands_its_code(shell: str, tmp_path: Path) -> None:
    code = processes_weft("completion", shell).output
    assert VARIABLE in code
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "code").write_text(code)
    done = subprocess.run([shell, "-n", tmp_path / "code"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_shell_is_refused_with_the_ones_that_there_are() -> None:
    assert "'bash', 'zsh', 'fish'" in str(processes_weft("completion", "tcsh").exception)


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


# --- What commands print for people stays in its columns, and loses nothing on a narrow terminal


_STYLE = re.compile("\x1b\\[[0-9;]*m")


def on_a_terminal(columns: int, show: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a terminal so wide gets."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as file, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", file)
        show()
    text = b""
    with contextlib.suppress(OSError):  # EIO: everything was read
        while part := os.read(controller, 1 << 16):
            text += part
    os.close(controller)
    return [line.rstrip() for line in _STYLE.sub("", text.decode()).splitlines()]


def test_long_facts_are_wrapped_in_their_column(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"log": "word " * 20, "next start": "first\nsecond"}
    lines = on_a_terminal(40, lambda: print_facts(facts), monkeypatch)
    assert lines[0].startswith("log         word word")
    assert max(map(len, lines)) <= 40
    assert lines[-2:] == ["next start  first", "            second"]
    assert {line[:12] for line in lines[1:-2]} == {" " * 12}


def test_a_table_says_every_name_in_full_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("press-shop", 200_760, 6_022_300, 0, 0), ("a-stream-with-a-name-that-is-long", 1, 1, 0, 0)]
    columns = ("stream", "in the log", "next seq", "lost", "waiting for the disk")
    lines = on_a_terminal(60, lambda: print_table(columns, rows), monkeypatch)
    assert max(map(len, lines)) <= 60
    assert "…" not in "".join(lines)
    (press_shop,) = [line for line in lines if "press-shop" in line]
    assert press_shop.split() == ["press-shop", "200760", "6022300", "0", "0"]


def test_wide_characters_do_not_shift_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("a", "b"), [("漢字", 1), ("kanji", 2)], "table")
    assert capsys.readouterr().out.splitlines() == ["a      b", "-----  -", "漢字   1", "kanji  2"]


def test_counts() -> None:
    assert (counted(0, "stream"), counted(1, "stream"), counted(2, "stream")) == ("0 streams", "1 stream", "2 streams")
