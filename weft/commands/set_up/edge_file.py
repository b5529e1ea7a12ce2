"""A first configuration of an edge node: its text, checked by the code that will load it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from weft.config.errors import ConfigError
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.output import Refused

USERS_FILE = "users"
TOKEN_FILE = "token"
_OPTIONS = {
    "node": "--node",
    "tenant": "--tenant",
    "data_dir": "--data-dir",
    "disk": "--disk",
    "listeners": "--listen",
    "streams": "--stream",
    "links": "--hub",
}
"""Section of the configuration -> option that it comes from."""


@dataclass(frozen=True)
class FirstAnswers:
    """Facts about a node that its first configuration states. Texts are as the person wrote them."""

    node: str
    tenant: str
    data_dir: str
    listen: str
    streams: Sequence[str]
    """``NAME=TOPIC``; a name may come several times."""
    disk: str | None = None
    hub: str | None = None
    ca_file: str | None = None
    """Authorities of the hub's certificate; None for those of the system."""
    has_token: bool = False
    has_users: bool = False


def text_of(answers: FirstAnswers) -> str:
    """Return the YAML. Each text of a person is quoted, so that it is a text whatever it contains."""
    streams: dict[str, list[str]] = {}
    for each in answers.streams:
        name, equals, topic = each.partition("=")
        if not equals:
            raise Refused(f"--stream: expected NAME=TOPIC, such as 'telemetry=plant/#', got {each!r}")
        streams.setdefault(name, []).append(topic)
    lines = [
        "# Made by `weft edge init`. docs/reference/settings.md has all settings, `weft config schema edge` a schema.",
        f"node: {_quoted(answers.node)}",
    ]
    if answers.tenant != "default":
        lines.append(f"tenant: {_quoted(answers.tenant)}")
    lines.append(f"data_dir: {_quoted(answers.data_dir)}")
    anonymous = ", anonymous: never" if answers.has_users else ""
    lines += ["listeners:", f"  mqtt: {{bind: {_quoted(answers.listen)}{anonymous}}}"]
    if answers.has_users:
        lines.append(f"auth: {{users_file: {USERS_FILE}}}")
    if answers.disk is not None:
        lines.append(f"disk: {{budget: {_quoted(answers.disk)}}}")
    lines.append("streams:")
    for name, topics in streams.items():
        lines += [f"  {_quoted(name)}:", f"    from: {_quoted(topics[0] if len(topics) == 1 else topics)}"]
    if answers.hub is not None:
        lines += ["links:", "  cloud:", f"    to: {_quoted(answers.hub)}"]
        if answers.has_token:
            lines.append(f"    token_file: {TOKEN_FILE}")
        if answers.ca_file is not None:
            lines.append(f"    ca_file: {_quoted(answers.ca_file)}")
    return "\n".join(lines) + "\n"


def _quoted(value: str | list[str]) -> str:
    # JSON is YAML. Escaped: YAML has line ends that JSON leaves in a text.
    return json.dumps(value)


def check_text(text: str, path: str) -> EdgeConfig:
    """Return the configuration in the text, as the file ``path`` would be. ``Refused`` names options that are wrong."""
    from weft.edge_node.check import check

    try:
        return parse(text, path, EdgeConfig, check).config
    except ConfigError as error:
        raise Refused("\n".join(_told(each.path, each.message) for each in error.problems)) from None


def _told(path: Sequence[str | int], message: str) -> str:
    if path[:1] == ("listeners",) and "without authentication" in message:
        return f"--listen: {message.partition('. ')[0]}. Name a user with --user, or listen on 127.0.0.1"
    return f"{_OPTIONS.get(str(path[0]) if path else '', 'the configuration')}: {message}"
