"""The command line: what scripts rely on (exit status, JSON, no tracebacks) and what people read."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click
import pytest

from docs.tools.commands import contexts
from docs.tools.prose import FOLDERS, ROOT, texts
from tests.support import forked
from tests.support.waiting import PATIENCE_S
from weft.cli import cli
from weft.commands.running import RunningHub, get_status, whole
from weft.hub_api.answers import EdgesAnswer, TokensAnswer
from weft.output import Failed

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


def test_every_command_that_a_message_names_exists_with_its_options() -> None:
    """Who follows a message types its command: the path of subcommands and each option are those of the parser."""
    options = {
        context.command_path: {name for each in context.command.params for name in (*each.opts, *each.secondary_opts)}
        for context in contexts("weft", cli)
    }
    groups = {context.command_path for context in contexts("weft", cli) if isinstance(context.command, click.Group)}
    named = 0
    for folder in sorted({*FOLDERS} - {"bench", "docs", "examples", "tests"}):
        for path in (each for each in (ROOT / folder).rglob("*.py") if each.resolve() == each):
            for text in (each for each in texts(path.read_text()) if each.kind == "message"):
                for code in re.findall(r"`(weft [a-z][^`]*)`", text.text):
                    words, command = code.split()[1:], "weft"
                    while command in groups and words and not words[0].startswith(("-", "X")):
                        command += f" {words.pop(0)}"
                    place = f"{path.relative_to(ROOT)}:{text.line}: {code}"
                    assert command in options, place
                    given = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
                    assert given <= options[command] | {"--help"}, place
                    named += 1
    assert named > 100
