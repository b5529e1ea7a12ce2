"""Questions of ``weft edge init``, asked at a terminal for what no option says."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from typing import Any

import click

from weft.commands.set_up.edge_file import FirstAnswers, check_text, text_of
from weft.commands.set_up.new_files import check_user
from weft.config.units import parse_bind
from weft.output import Refused

STREAM = "telemetry"
LISTEN = "127.0.0.1:1883"
TOPIC = "#"


def answers_of(given: dict[str, Any], *, has_token: bool = False) -> FirstAnswers:
    """Return the answers in the options, with defaults for what is missing."""
    return FirstAnswers(
        node=given["node"],
        tenant=given["tenant"],
        data_dir=given["data_dir"],
        listen=given["listen"] or LISTEN,
        streams=given["streams"] or (f"{STREAM}={TOPIC}",),
        disk=given["disk"],
        hub=given["hub"],
        # The option names a file from here, the configuration from its own folder.
        ca_file=os.path.abspath(given["ca_file"]) if given["ca_file"] else None,
        has_token=has_token,
        has_users=given["user"] is not None,
    )


def ask(given: dict[str, Any]) -> None:
    """Fill in what the options leave out. A wrong answer is asked for again."""
    if given["node"] is None:
        given["node"] = _asked("Name of this node", _host_name(), lambda text: {"node": text})
    if not given["streams"]:
        topic = _asked(f"MQTT topics of the stream {STREAM}", TOPIC, lambda text: {"streams": (f"{STREAM}={text}",)})
        given["streams"] = (f"{STREAM}={topic}",)
    if given["listen"] is None:
        given["listen"] = _asked("Listen for MQTT on", LISTEN, lambda text: {"listen": text})
    if given["user"] is None and not _is_loopback(given["listen"]):
        given["user"] = click.prompt("Name with which devices log in", value_proc=_checked_user, err=True)
    if given["hub"] is None:
        url = _asked("URL of the hub (Enter: none yet)", "", lambda text: {"hub": text or None})
        given["hub"] = url or None


def _asked(question: str, default: str, changes: Callable[[str], dict[str, Any]]) -> str:
    """Return an answer with which a configuration would be valid; ``changes`` are the answers that it stands for."""

    def checked(text: str) -> str:
        trial: dict[str, Any] = {
            "node": "n", "tenant": "default", "data_dir": "data", "listen": LISTEN, "streams": (), "disk": None,
            "hub": None, "ca_file": None, "user": "u",
        }  # fmt: skip
        try:
            check_text(text_of(answers_of({**trial, **changes(text.strip())})), "edge.yaml")
        except Refused as refused:
            raise click.UsageError(str(refused).partition(": ")[2] or str(refused)) from None
        return text.strip()

    answer: str = click.prompt(question, default=default, show_default=bool(default), value_proc=checked, err=True)
    return answer


def _checked_user(text: str) -> str:
    try:
        check_user(text)
    except Refused as refused:
        raise click.UsageError(str(refused)) from None
    return text


def _host_name() -> str:
    """Return the machine's name as a node may be called."""
    return re.sub(r"[^a-z0-9_-]+", "-", socket.gethostname().lower().partition(".")[0]).strip("-_")[:64] or "edge-1"


def _is_loopback(listen: str) -> bool:
    try:
        return parse_bind(listen).is_loopback
    except ValueError:  # a socket, or what the check refuses
        return listen.startswith("unix:")
