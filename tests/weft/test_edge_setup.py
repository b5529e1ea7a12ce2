"""`weft edge init`: a first configuration that is right, secrets in files of their own, and nothing overwritten."""

from __future__ import annotations

import json
import os
import pty
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from examples.demo.fabric import free_port
from tests.support.processes import Start, publish, weft
from tests.support.waiting import PATIENCE_S, wait_until
from weft.cli import cli
from weft.commands.common import load_edge
from weft.commands.edge_setup import ask
from weft.edge_node.access import users
from weft.output import Refused

ANSWERS = {"node": None, "tenant": "default", "streams": (), "listen": None, "user": None, "hub": None}
EXAMPLE = Path(__file__).parents[2] / "config/examples/edge-package.yaml"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "edge.yaml"


def refused(*arguments: object, answer: str | None = None) -> str:
    result = weft("edge", "init", *arguments, answer=answer)
    assert isinstance(result.exception, Refused), result.output
    return str(result.exception)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_name_is_enough_and_the_next_commands_are_said(config: Path) -> None:
    said = weft("edge", "init", config, "--node", "press-7").output
    made = load_edge(str(config))
    assert (made.node, made.data_dir, list(made.streams)) == ("press-7", str(config.parent / "data"), ["telemetry"])
    assert f"weft edge check {config}" in said
    assert f"weft edge run {config}" in said
    assert os.listdir(config.parent) == ["edge.yaml"]


def test_secrets_are_in_files_for_the_owner_alone_and_nowhere_else(config: Path) -> None:
    reported = weft(
        "edge",
        "init",
        config,
        "--node",
        "press-7",
        "--listen",
        "0.0.0.0:1883",
        "--user",
        "gateway",
        "--generate-password",
        "--hub",
        "https://hub.example.com",
        "--token-file",
        "-",
        "--json",
        answer="t0ken\n",
    )
    made = load_edge(str(config))
    files = {path.name: path for path in config.parent.iterdir()}
    assert json.loads(reported.output)["written"] == [
        str(files[name]) for name in ("users", "user.password", "token", "edge.yaml")
    ]
    assert {mode(path) for path in files.values()} == {0o600}
    password = files["user.password"].read_text().strip()
    assert users.verify(users.read(str(files["users"]))["gateway"], password.encode())
    assert (made.links["cloud"].token_file, files["token"].read_text()) == (str(files["token"]), "t0ken\n")
    listener = made.listeners["mqtt"]
    assert listener is not None
    assert listener.anonymous == "never"
    assert not any(secret in reported.output + config.read_text() for secret in (password, "t0ken"))


def test_a_token_that_was_copied_from_a_file_is_said_to_lie_there_twice(config: Path, tmp_path: Path) -> None:
    given = tmp_path / "press-7.token"
    given.write_text("t0ken\n")
    made = weft("edge", "init", config, "--node", "n", "--hub", "https://h", "--token-file", given)
    assert f"Delete {given}: " in made.stderr
    assert (tmp_path / "token").read_text() == "t0ken\n"


def test_a_password_may_come_from_a_file(config: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    given = ("--node", "n", "--user", "a", "--password-file", tmp_path / "secret")
    assert weft("edge", "init", config, *given).exception is None
    assert users.verify(users.read(str(tmp_path / "users"))["a"], b"from a file")


@pytest.mark.parametrize("name", ["edge.yaml", "token", "users"])
def test_what_is_there_is_not_overwritten(config: Path, name: str) -> None:
    (config.parent / name).write_text("mine\n")
    given = ("--node", "n", "--hub", "https://h", "--token-file", "-", "--user", "u", "--generate-password")
    assert "already exists, and is not overwritten" in refused(config, *given, answer="t\n")
    assert {path.name: path.read_text() for path in config.parent.iterdir()} == {name: "mine\n"}


def test_the_package_s_example_is_replaced_while_it_is_unchanged(config: Path) -> None:
    shutil.copy(EXAMPLE, config)
    assert weft("edge", "init", config, "--node", "press-7").exception is None
    assert load_edge(str(config)).node == "press-7"
    config.write_text(EXAMPLE.read_text() + "\n")
    assert "already exists" in refused(config, "--node", "press-8")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--node", "Press 7"), "--node: expected"),
        (("--node", "n", "--listen", "0.0.0.0:1883"), "Name a user with --user, or listen on 127.0.0.1"),
        (("--node", "n", "--listen", "1883"), "--listen: expected"),
        (("--node", "n", "--stream", "plant/#"), "--stream: expected NAME=TOPIC"),
        (("--node", "n", "--stream", "t=a/#/b"), "--stream: "),
        (("--node", "n", "--hub", "ftp://x"), "--hub: expected a URL"),
        (("--node", "n", "--disk", "3"), "--disk: expected a size"),
        (("--node", "n\nstreams: {}"), "--node: expected"),
        (("--node", "n", "--token-file", "t"), "Name its URL with --hub"),
        (("--node", "n", "--ca-file", "a.crt"), "Name its URL with --hub"),
        (("--node", "n", "--generate-password"), "Name one with --user"),
        (("--node", "n", "--user", "a:b", "--generate-password"), "a name has no colon"),
        ((), "Name the node with --node"),
    ],
)
def test_a_mistake_names_its_option_and_leaves_nothing(config: Path, options: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(config, *options)
    assert os.listdir(config.parent) == []


def test_secrets_from_one_standard_input_are_refused(config: Path) -> None:
    given = ("--node", "n", "--hub", "https://h", "--token-file", "-", "--user", "u", "--password-file", "-")
    assert "cannot both come from standard input" in refused(config, *given, answer="x\n")


def test_a_token_that_is_none_is_refused(config: Path) -> None:
    given = ("--node", "n", "--hub", "https://h", "--token-file", "-")
    assert "standard input is empty" in refused(config, *given, answer="\n")
    assert "expected one token" in refused(config, *given, answer="a b\n")


def answered(typed: str, **given: Any) -> tuple[Result, dict[str, Any]]:
    """What is asked, and the answers in the end."""
    facts = {**ANSWERS, **given, "data_dir": "data", "disk": None}

    @click.command()
    def asking() -> None:
        ask(facts)

    return CliRunner().invoke(asking, input=typed), facts


def test_a_wrong_answer_is_asked_for_again() -> None:
    result, facts = answered("Press 7\npress-7\nplant/#/x\nplant/#\n0.0.0.0:1883\na:b\ngateway\nhub\nhttps://hub\n")
    assert result.exit_code == 0, result.output
    assert (facts["node"], facts["streams"]) == ("press-7", ("telemetry=plant/#",))
    assert (facts["listen"], facts["user"], facts["hub"]) == ("0.0.0.0:1883", "gateway", "https://hub")
    assert result.output.count("Name of this node") == 2


def test_only_what_no_option_says_is_asked_for() -> None:
    result, facts = answered("\n", node="n", streams=("a=b",), listen="127.0.0.1:1883")
    assert result.output.strip() == "URL of the hub (Enter: none yet):"
    assert facts["hub"] is None


@pytest.mark.slow
@pytest.mark.processes
def test_at_a_terminal_secrets_are_typed_and_not_shown(config: Path) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "weft", "edge", "init", str(config)]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    said = ""
    try:
        for question, answer in (
            ("Name of this node", "press-7"),
            ("MQTT topics", "plant/#"),
            ("Listen", "0.0.0.0:1883"),
            ("Name with which", "gateway"),
            ("URL", "https://hub.example.com"),
            ("Token", "t0ken"),
            ("Password", "s3cret"),
            ("Repeat", "s3cret"),
        ):
            while question not in said.rpartition("\n")[2]:
                said += os.read(controller, 4096).decode()
            os.write(controller, answer.encode() + b"\n")
        assert process.wait(PATIENCE_S) == 0
        said += os.read(controller, 4096).decode()
    finally:
        process.kill()
        process.wait()
        os.close(controller)
    assert "t0ken" not in said
    assert "s3cret" not in said
    assert load_edge(str(config)).links["cloud"].token_file is not None
    assert users.verify(users.read(str(config.parent / "users"))["gateway"], b"s3cret")


# --- The first hour without a checkout: authority, hub, code, edge, and a record at the hub; by the commands alone


def done(*arguments: object, answer: str | None = None) -> str:
    result = weft(*arguments, answer=answer)
    assert result.exception is None, result.exception
    return str(result.stdout)


def pairing_refused(*arguments: object, answer: str | None = None) -> str:
    result = weft(*arguments, answer=answer)
    assert result.exception is not None, result.output
    return str(result.exception)


@pytest.mark.slow
@pytest.mark.processes
def test_an_edge_is_paired_by_a_code_and_its_record_is_at_the_hub(start: Start, tmp_path: Path) -> None:
    port, mqtt = free_port(), free_port()
    hub_yaml, edge_yaml = tmp_path / "hub" / "hub.yaml", tmp_path / "edge" / "edge.yaml"
    url = f"https://127.0.0.1:{port}"
    hub_yaml.parent.mkdir()
    edge_yaml.parent.mkdir()
    done("ca", "init", tmp_path / "ca")
    done("hub", "init", hub_yaml, "--listen", f"127.0.0.1:{port}", "--ca", tmp_path / "ca", "--host", "127.0.0.1")
    hub_yaml.write_text(hub_yaml.read_text() + "processes: 1\nshards: 1\n")
    start("hub", hub_yaml)
    answer = json.loads(done("hub", "token", "pair", hub_yaml, "press-7", "--json", "--yes"))
    stored = [path.read_bytes() for path in (hub_yaml.parent / "store").rglob("*") if path.is_file()]
    assert not any(answer["code"].replace("-", "").encode() in each for each in stored)

    authority, token = hub_yaml.parent / "authority.crt", edge_yaml.parent / "press-7.token"
    given = (url, "--ca-file", authority, "--to", token)
    wrong = pairing_refused("edge", "pair", *given, answer="0000-0000-0000\n")
    assert "this code is not valid here: it is wrong, was used, has ended" in wrong
    assert not token.exists()
    done("edge", "pair", *given, answer=f"{answer['code'].lower()}\n")
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert [path.name for path in edge_yaml.parent.iterdir()] == ["press-7.token"], "nothing is left of the try before"
    assert "already exists" in pairing_refused("edge", "pair", *given, answer="x\n")
    again = pairing_refused(
        "edge", "pair", url, answer["code"], "--ca-file", authority, "--to", tmp_path / "thief.token"
    )
    assert "was used" in again

    done(
        "edge",
        "init",
        edge_yaml,
        "--node",
        "press-7",
        "--hub",
        url,
        "--token-file",
        token,
        "--listen",
        f"127.0.0.1:{mqtt}",
        "--disk",
        "1GiB",
        "--ca-file",
        authority,
    )
    edge_yaml.write_text(edge_yaml.read_text() + "http: null\n")
    start("edge", edge_yaml)
    publish(mqtt, "a", ["x"] * 3)

    admin = hub_yaml.parent / "admin.token"
    done("hub", "token", "add", hub_yaml, "ops", "--scope", "admin", "--to", admin)

    def records() -> Any:
        result = weft("hub", "status", hub_yaml, "--json", "--token-file", admin)
        if result.exception is not None:
            return 0  # the hub does not know the token yet
        return sum(each["written"]["records"] for each in json.loads(result.stdout)["shards"])

    wait_until(lambda: records() >= 3, what=records)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("http://hub.example.com",), "in clear text to http://hub.example.com. Use https, or add --plain-http"),
        (("hub.example.com",), "expected the URL of a hub"),
        (("https://other.example.com", "--config", "{config}"), "has no link to https://other.example.com; there"),
        (("https://hub.example.com", "--config", "{config}"), "links.cloud has no token_file. Add `token_file: "),
        (
            ("http://127.0.0.1:{port}", "K7QF-9XDM-2RPT", "--to", "{token}"),
            "The same command continues with the same token",
        ),
    ],
)
def test_a_pairing_that_cannot_be_says_why(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    config, token = tmp_path / "edge.yaml", tmp_path / "token"
    config.write_text('node: n\ndata_dir: data\nlinks: {cloud: {to: "https://hub.example.com"}}\n')
    places = {"config": config, "port": free_port(), "token": token}
    assert sentence in pairing_refused("edge", "pair", *(each.format(**places) for each in arguments))
    assert not token.exists()


# --- `weft user`: passwords come from people or files, and go nowhere but into a hash


def user(*arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["user", *arguments], input=typed, catch_exceptions=False)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "users")


def test_a_password_is_asked_for_twice_and_not_shown(file: str) -> None:
    result = user("add", "press-7", "--file", file, typed="a secret\na secret\n")
    assert result.output.endswith("added press-7\n")
    assert "a secret" not in result.output + Path(file).read_text()
    assert user("check", "press-7", "--file", file, typed="a secret\n").exit_code == 0
    wrong = user("check", "press-7", "--file", file, typed="another\n")
    assert (wrong.exit_code, "not the password of press-7" in wrong.output) == (1, True)


def test_a_password_of_a_user_may_come_from_a_file(file: str, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("from a file\n")
    user("add", "press-7", "--file", file, "--password-file", str(secret))
    assert user("check", "press-7", "--file", file, "--password-file", "-", typed="from a file").exit_code == 0


def test_there_is_no_way_to_give_a_password_on_the_command_line(file: str) -> None:
    assert user("add", "press-7", "a secret", "--file", file).exit_code == 2
    assert user("add", "press-7", "--password", "a secret", "--file", file).exit_code == 2


def test_users_come_and_go(file: str) -> None:
    for name in ("b", "a"):
        user("add", name, "--file", file, typed="x\nx\n")
    assert json.loads(user("list", "--file", file, "--json").output) == ["b", "a"]
    assert "b has a new password" in user("add", "b", "--file", file, typed="y\ny\n").output
    user("remove", "b", "--file", file)
    assert user("list", "--file", file).output == "a\n"
    with pytest.raises(Refused, match="there is no user 'b'"):
        user("remove", "b", "--file", file)


def test_a_bad_name_is_refused_before_a_password_is_asked_for(file: str) -> None:
    with pytest.raises(Refused, match="no colon"):
        user("add", "a:b", "--file", file)
