"""`weft hub init`: a first configuration that `weft hub check` finds good, and the commands that come next."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from examples.demo.fabric import free_port
from tests.support.processes import weft
from weft.commands.common import load_hub
from weft.commands.hub_init import ask
from weft.output import Refused

EXAMPLE = Path(__file__).parents[2] / "config/examples/hub-package.yaml"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub" / "hub.yaml"


def refused(*arguments: object) -> str:
    result = weft("hub", "init", *arguments)
    assert result.exception is not None, result.output
    return str(result.exception)


def test_without_options_the_hub_serves_its_machine_and_demands_a_token(config: Path) -> None:
    said = weft("hub", "init", config)
    assert said.exception is None, said.exception
    made = load_hub(str(config))
    assert (made.listen, made.anonymous) == ("127.0.0.1:8090", "never")
    assert made.store.endswith(str(config.parent / "store"))
    assert [path.name for path in config.parent.iterdir()] == ["hub.yaml"]
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert f"weft hub token pair {config} EDGE" in said.output
    assert weft("hub", "token", "add", config, "admin", "--scope", "admin", "--to", config.parent / "t").exit_code == 0
    add = f"weft hub token add {config} admin --scope admin --to {config.parent / 'admin.token'}"
    assert add in said.output
    assert stat.S_IMODE((config.parent / "t").stat().st_mode) == 0o600
    free = config.read_text().replace(made.listen, f"127.0.0.1:{free_port()}")
    config.write_text(f"{free}processes: 1\n")  # each process takes one more port, which `check` tries
    assert weft("hub", "check", config).stderr == ""


def test_an_authority_makes_a_hub_that_others_may_call(config: Path, tmp_path: Path) -> None:
    weft("ca", "init", tmp_path / "ca")
    reported = weft(
        "hub",
        "init",
        config,
        "--listen",
        "0.0.0.0:18090",
        "--ca",
        tmp_path / "ca",
        "--host",
        "hub.test",
        "--edge-certificates",
        "--json",
    )
    assert reported.exception is None, reported.exception
    checked = json.loads(weft("hub", "check", config, "--json").output)
    assert checked["good"], checked
    assert list(checked["certificates"]) == [str(config.parent / "hub.crt")]
    made = load_hub(str(config))
    assert made.tls is not None
    assert made.tls.client_certificate == "optional"
    assert set(json.loads(reported.output)["written"]) == set(map(str, config.parent.iterdir()))


def test_certificates_that_are_there_are_named_from_the_configuration_s_folder(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weft("ca", "init", tmp_path / "ca")
    weft("ca", "hub", tmp_path / "ca", "--host", "hub.test", "--to", tmp_path)
    monkeypatch.chdir(tmp_path)
    weft("hub", "init", config, "--listen", "0.0.0.0:18090", "--certificate", "hub.crt", "--key", "hub.key")
    made = load_hub(str(config))
    assert made.tls is not None
    assert (made.tls.certificate, made.tls.key) == (str(tmp_path / "hub.crt"), str(tmp_path / "hub.key"))


def test_what_is_there_is_not_overwritten(config: Path) -> None:
    config.write_text("mine\n")
    assert "already exists" in refused(config)
    assert config.read_text() == "mine\n"


def test_the_package_s_example_is_replaced_while_it_is_unchanged(config: Path) -> None:
    config.write_bytes(EXAMPLE.read_bytes())
    assert weft("hub", "init", config, "--store", "s3://plant/weft").exception is None
    assert load_hub(str(config)).store == "s3://plant/weft"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--listen", "0.0.0.0:8090"), "--listen: tokens would cross the network in clear text"),
        (("--listen", "8090"), "--listen: expected"),
        (("--store", "ftp://x"), "--store: "),
        (("--ca", "ca"), "Give --ca FOLDER and --host NAME"),
        (("--ca", "ca", "--host", "h"), "`weft ca init` makes an authority"),
        (("--certificate", "c"), "Give --certificate and --key"),
        (("--plain-http", "--certificate", "c", "--key", "k"), "exclude each other"),
        (("--edge-certificates",), "needs --ca"),
    ],
)
def test_a_mistake_names_its_option_and_leaves_nothing(config: Path, options: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(config, *options)
    assert list(config.parent.iterdir()) == []


def test_a_wrong_answer_is_asked_for_again() -> None:
    given = dict.fromkeys(("store", "listen", "ca", "certificate", "key"))
    facts = {**given, "hosts": (), "plain_http": False, "edge_certificates": False}

    @click.command()
    def asking() -> None:
        ask(facts, "store")

    result = CliRunner().invoke(asking, input="ftp://x\ns3://plant/weft\n8090\n0.0.0.0:8090\nplant-ca\na.test b.test\n")
    assert result.exit_code == 0, result.output
    assert (facts["store"], facts["listen"]) == ("s3://plant/weft", "0.0.0.0:8090")
    assert (facts["ca"], facts["hosts"]) == ("plant-ca", ("a.test", "b.test"))


def test_a_wrong_token_file_is_no_configuration(tmp_path: Path) -> None:
    result = weft("hub", "init", tmp_path / "admin.token")
    assert isinstance(result.exception, Refused)
