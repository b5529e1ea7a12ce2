"""What a hub may set on an edge: the same list at both ends, over all settings of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.edge_node.links.desired.edges import FILE, HUB, Edge, wanted
from weft.cloud_hub.facts import edges as edge_configs
from weft.cloud_hub.facts.fact import CannotDeclare
from weft.config.errors import ConfigError
from weft.config.load import PUSHABLE, check_overlay, leaves
from weft.config.models import EdgeConfig
from weft.config.schema import settings
from weft.protocols.link import ConfigOutcome

RIGHTS = tuple(
    f"links.<name>.{name}"
    for name in (
        "config_from_hub",
        "cluster",
        "down",
        "pull",
        "redirects",
        "proxy",
        "retry_m",
        "ping_interval",
        "silence",
    )
)
"""What a hub may do, whom a link shows credentials, and how soon a lost hub is found again."""
LOCAL = ("token", "password", "secret", "credential")


def overlay(path: str) -> str:
    """An overlay with one setting, named as the reference names it."""
    value: Any = "x"
    for name in reversed(path.replace("[]", ".[]").split(".")):
        value = [value] if name == "[]" else {"x" if name == "<name>" else name: value}
    return msgspec.json.encode(value).decode()


def local_settings() -> list[str]:
    found = []
    for each in settings(EdgeConfig):
        is_in_payloads = "motor.rpm" in each.expected
        names_file = "a path" in each.expected.split(" such")[0] or "or unix:/path" in each.expected
        names_file = names_file and not is_in_payloads
        last = each.path.rpartition(".")[2]
        is_own = each.path.split(".")[0] not in PUSHABLE
        rights = each.path.startswith(RIGHTS)
        if names_file or is_own or rights or any(word in last for word in LOCAL):
            found.append(each.path)
    return found


def test_every_file_credential_and_right_is_refused_by_the_command() -> None:
    paths = local_settings()
    assert len(paths) > 40
    for known in (
        "data_dir",
        "links.<name>.token_file",
        "sources.<name>.mqtt.password_env",
        "auth.users_file",
        "streams.<name>.functions[].redact.key_file",
        "listeners.<name>.tls.key",
    ):
        assert known in paths
    for path in paths:
        with pytest.raises(CannotDeclare, match="cannot be set by a hub"):
            edge_configs.set_config(("default", "edge", "press-7"), overlay(path))


async def test_every_one_of_them_is_refused_by_the_edge_itself(tmp_path: Path) -> None:
    """A hub that does not check, or an attacker in its place, gets no further."""
    edge = Edge(tmp_path, "allowed_with_restart")
    before = edge.config
    for version, path in enumerate(local_settings(), 1):
        await edge.push(wanted(overlay(path), version))
        assert edge.outcome == (ConfigOutcome.REFUSED, version, 0), path
        assert "cannot be set by a hub" in edge.said[-1].reason
    assert edge.config == before


async def test_the_short_form_of_a_file_is_refused_too(tmp_path: Path) -> None:
    """It is refused before it is read: a reason must not tell a hub what is in a file of the edge."""
    (tmp_path / "secret").write_text("s3cret: s3cret")
    text = f"streams: {{telemetry: {{schema: {tmp_path}/secret}}}}"
    with pytest.raises(CannotDeclare, match="cannot be set by a hub"):
        edge_configs.set_config(("default", "edge", "press-7"), text)
    edge = Edge(tmp_path, "allowed")
    await edge.push(wanted(text))
    assert edge.outcome[0] is ConfigOutcome.REFUSED
    assert "streams.telemetry.schema.file: cannot be set by a hub" in edge.said[-1].reason
    assert "s3cret" not in edge.said[-1].reason


async def test_a_hub_may_declare_the_schema_that_payloads_are_checked_against(tmp_path: Path) -> None:
    edge = Edge(tmp_path, "allowed")
    await edge.push(wanted("streams: {telemetry: {on_misfit: dead_letter, schema: {fields: {t: float}}}}"))
    assert edge.outcome[0] is ConfigOutcome.TRIAL
    assert edge.config.streams["telemetry"].schema is not None
    assert edge.config.streams["telemetry"].on_misfit == "dead_letter"
    other = Edge(tmp_path / "other", "allowed")
    await other.push(wanted("streams: {telemetry: {schema: {fields: {t: flote}}}}"))
    assert other.outcome == (ConfigOutcome.REFUSED, 7, 0)
    assert "expected a type such as float" in other.said[-1].reason


def test_all_other_settings_may_be_set() -> None:
    local = local_settings()
    others = [each.path for each in settings(EdgeConfig) if each.path not in local and each.expected != "section"]
    assert len(others) > 150
    for path in others:
        check_overlay(overlay(path))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("links: {cloud: {to: 'http://hub.example.com'}}", "expected URLs with https"),
        ("links: {other: {to: 'https://evil.example.com'}}", "shows its own credential"),
        ("sources: {old: {mqtt: {url: 'mqtt://evil.example.com'}}}", "shows a credential there"),
    ],
)
async def test_an_edge_shows_no_credential_at_an_address_of_the_hubs_choice(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    (tmp_path / "secret").chmod(0o600)
    other = "other: {to: 'https://other.example.com', token_file: secret, streams: [telemetry]}"
    file = FILE.format(hub=HUB, allowed="allowed, token_file: secret").replace("links: {", f"links: {{{other}, ")
    source = "{mqtt: {url: 'mqtt://127.0.0.1', topics: 'a/#', username: u, password_file: secret}}"
    (tmp_path / "edge.yaml").write_text(f"{file}sources: {{old: {source}}}\n")
    edge = Edge(tmp_path)
    await edge.push(wanted(text))
    assert edge.outcome[0] is ConfigOutcome.REFUSED
    assert why in edge.said[-1].reason


def test_leaves_are_the_settings_that_an_overlay_has() -> None:
    text = "streams: {a: {from: ['x/#', y]}}\nlimits: {message: 2MiB}"
    assert list(leaves(text)) == [("streams.a.from", "[x/#, y]"), ("limits.message", "2MiB")]
    with pytest.raises(ConfigError):
        list(leaves("a: 1\na: 2"))
