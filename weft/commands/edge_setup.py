"""``weft edge init``, ``pair``, ``rename`` and ``take-over``: a first configuration, a token for the machine, another
name, and the records of a lost peer."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

import click
import msgspec

from weft.client import Client, HubRefusal, HubUnreachable
from weft.cloud_hub.auth.tokens import hash_token, new_token
from weft.commands.acts import ordering
from weft.commands.common import config_argument, confirm, json_option, load_edge, tenant_option, using, yes_option
from weft.commands.credentials import password_of, password_option
from weft.commands.new_files import check_place, check_user, print_next, user_line, write_new
from weft.commands.node_log import NodeLog, readable, target_argument
from weft.config.errors import ConfigError
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.config.release import SOFTWARE
from weft.config.units import Address, parse_bind, parse_duration
from weft.edge_node.check.rules import check
from weft.edge_node.control.client import ControlFailed, ask_take_over
from weft.network.reload import TOKEN_BYTES_MAX, read_token, token_in
from weft.network.tls import ClientTlsFiles, TlsUnusable, client_context
from weft.output import Failed, Refused, counted, print_json
from weft.protocols.link import CODE_ALPHABET, CODE_CHARACTERS, PAIR_PATH, PairAnswer, PairRequest, spoken
from weft.storage.filesystem import DirectoryInUse, sync_folder
from weft.storage.segment_log import LogError

if TYPE_CHECKING:
    from weft.edge_node.inspect.maintenance import Renaming, UndeliveredRecords


# A first configuration of an edge node: its text, checked by the code that will load it.

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
    try:
        return parse(text, path, EdgeConfig, check).config
    except ConfigError as error:
        raise Refused("\n".join(_problem_lines(each.path, each.message) for each in error.problems)) from None


def _problem_lines(path: Sequence[str | int], message: str) -> str:
    if path[:1] == ("listeners",) and "without authentication" in message:
        return f"--listen: {message.partition('. ')[0]}. Name a user with --user, or listen on 127.0.0.1"
    return f"{_OPTIONS.get(str(path[0]) if path else '', 'the configuration')}: {message}"


# Questions of ``weft edge init``, asked at a terminal for what no option says.

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
            "node": "n",
            "tenant": "default",
            "data_dir": "data",
            "listen": LISTEN,
            "streams": (),
            "disk": None,
            "hub": None,
            "ca_file": None,
            "user": "u",
        }
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


# ``weft edge init``: a first configuration, from options or answers.

PASSWORD_FILE = "user.password"
UNIT_FOLDER = "/etc/weft"
"""Folder of the configuration under systemd, where the node runs as the user ``weft-edge``."""
UNIT_DATA = "/var/lib/weft"
_STDIN = "<stdin>"


@click.command("init")
@click.argument("config_file", metavar="[CONFIG]", default="edge.yaml", type=click.Path(readable=False))
@click.option("--node", help="Name of the node and of its records.")
@tenant_option("Tenant at the hub.")
@click.option("--stream", "streams", multiple=True, metavar="NAME=TOPIC", help="Stream and an MQTT filter; repeatable.")
@click.option("--listen", metavar="ADDRESS", help="Address and port for MQTT, such as 0.0.0.0:1883.")
@click.option("--user", help="Name with which devices log in.")
@password_option
@click.option("--generate-password", is_flag=True, help=f"Write a new password into {PASSWORD_FILE}, beside CONFIG.")
@click.option("--hub", metavar="URL", help="Hub to send to.")
@click.option("--token-file", metavar="FILE", help="File with the token for the hub, `-` for standard input.")
@click.option("--ca-file", metavar="FILE", help="Authorities that the hub is trusted by. Default: those of the system.")
@click.option("--data-dir", metavar="FOLDER", help="Folder of the node's log, relative to CONFIG.")
@click.option("--disk", metavar="SIZE", help="Maximum disk space of the log, such as 16GiB.")
@json_option
def edge_init(
    config_file: str,
    *,
    password_file: BinaryIO | None,
    generate_password: bool,
    token_file: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Write a first CONFIG (edge.yaml) of an edge node, checked as at a start of the node.

    At a terminal the command asks for options that are missing. Users and the token go into files beside CONFIG that
    only the owner of the folder may read. Nothing is overwritten, except the example of the Debian package while it is
    unchanged.

    \b
    weft edge init edge.yaml
    weft edge init edge.yaml --node press-7 --stream 'telemetry=plant/#' --hub https://hub.example.com \\
      --token-file press-7.token
    """
    _check_options(given["user"], password_file, generate_password, given["hub"], token_file)
    if given["ca_file"] is not None and given["hub"] is None:
        raise Refused("an authority needs a hub. Name its URL with --hub")
    check_place(config_file, (USERS_FILE, TOKEN_FILE, PASSWORD_FILE), "edge.yaml")
    asks = sys.stdin.isatty() and not as_json
    if asks:
        ask(given)
    if given["node"] is None:
        raise Refused("there is no terminal to ask on. Name the node with --node")
    token = _token(token_file, asks=asks and given["hub"] is not None)
    folder = os.path.dirname(config_file)
    is_unit = os.path.abspath(folder) == UNIT_FOLDER
    given["data_dir"] = given["data_dir"] or (UNIT_DATA if is_unit else "data")
    text = text_of(answers_of(given, has_token=token is not None))
    check_text(text, config_file)
    secret: dict[str, bytes] = {}
    if given["user"] is not None:
        check_user(given["user"])
        password = secrets.token_urlsafe(18).encode() if generate_password else password_of(password_file, confirm=True)
        secret[USERS_FILE] = user_line(given["user"], password)
        if generate_password:
            secret[PASSWORD_FILE] = password + b"\n"
    if token is not None:
        secret[TOKEN_FILE] = token.encode() + b"\n"
    # The configuration is last: one that is there is whole.
    contents = {os.path.join(folder, name): data for name, data in secret.items()} | {config_file: text.encode()}
    write_new(contents, replaced=config_file)
    _print_summary(list(contents), config_file, is_unit=is_unit, as_json=as_json)
    if token_file not in (None, "-"):
        copied = f"{os.path.join(folder, TOKEN_FILE)} has the token of {token_file} now"
        click.echo(f"note: {copied}. Delete {token_file}: a secret need not lie there twice", err=True)


def _check_options(
    user: str | None, password_file: BinaryIO | None, generate: bool, hub: str | None, token_file: str | None
) -> None:
    """Refuse options that do not fit each other."""
    if (password_file is not None or generate) and user is None:
        raise Refused("a password needs a user. Name one with --user")
    if password_file is not None and generate:
        raise Refused("--password-file and --generate-password exclude each other. Leave one out")
    if token_file is not None and hub is None:
        raise Refused("a token needs a hub. Name its URL with --hub")
    if token_file == "-" and password_file is not None and getattr(password_file, "name", _STDIN) == _STDIN:
        raise Refused("the token and the password cannot both come from standard input. Put one into a file")


def _token(path: str | None, *, asks: bool) -> str | None:
    """Return the token of a file or of standard input, or ask for one."""
    if path is None and not asks:
        return None
    try:
        if path is None:
            typed: str = click.prompt(
                "Token for the hub (Enter: none yet)", hide_input=True, default="", show_default=False
            )
            return token_in(typed.encode(), "the token") if typed else None
        if path == "-":
            return token_in(sys.stdin.buffer.read(TOKEN_BYTES_MAX + 1), "standard input")
        with using(path, makes="weft hub token add"):
            return read_token(path)
    except ValueError as error:
        raise Refused(str(error)) from None


def _print_summary(written: list[str], config_file: str, *, is_unit: bool, as_json: bool) -> None:
    """Say what was written, and the commands that come next."""
    prefix = "sudo -u weft-edge " if is_unit else ""
    file = shlex.quote(config_file)
    run = "sudo systemctl enable --now weft-edge" if is_unit else f"weft edge run {file}"
    commands = [f"{prefix}weft edge check {file}", run, f"{prefix}weft edge doctor {file}"]
    print_next(written, commands, as_json=as_json)


# ``weft edge pair``: a token for this machine, by a code that an operator has made at the hub.

PAIRED_TOKEN_FILE = "edge.token"
PENDING = ".pending"
TRIES, PAUSE_S = 3, 2.5
"""Tries of one code: hub processes know it two seconds after it was made."""
ANSWER_S_MAX = 30.0
ANSWER_BYTES_MAX = 64 << 10


class _Asking(NamedTuple):
    """The machine that asks, and the way to its hub."""

    tenant: str | None
    edge: str | None
    path: str
    """File of the token."""
    tls: ClientTlsFiles
    is_replaced: bool
    """True if a token that is there gives way."""


@click.command("pair")
@click.argument("url")
@click.argument("code", required=False)
@click.option("--config", "config_file", metavar="CONFIG", help="Configuration whose link gets the token.")
@click.option("--to", metavar="FILE", help=f"File for the token, of mode 600 ({PAIRED_TOKEN_FILE}).")
@click.option("--ca-file", metavar="FILE", help="Authorities that the hub is trusted by. Default: those of the system.")
@click.option("--replace", "replaces", is_flag=True, help="Replace an existing token.")
@click.option("--plain-http", is_flag=True, help="Send the code without TLS to another machine.")
@json_option
def edge_pair(
    url: str,
    code: str | None,
    *,
    config_file: str | None,
    to: str | None,
    ca_file: str | None,
    replaces: bool,
    plain_http: bool,
    as_json: bool,
) -> None:
    """Get a token from the hub at URL for this machine, by the CODE that `weft hub token pair` has shown.

    The token is made here, and only its hash goes to the hub. Without CODE the command asks for it. With --config,
    authority and token_file are those of the link with this URL, and the code must be for this node. If the answer is
    lost, the same command continues with the same token.

    \b
    weft edge pair https://hub.example.com K7QF-9XDM-2RPT --to press-7.token
    weft edge pair https://hub.example.com --config edge.yaml
    """
    _check_url(url, plain_http=plain_http)
    asking = _asking(url, config_file, to, ca_file, replaces=replaces)
    if os.path.lexists(asking.path) and not asking.is_replaced:
        raise Refused(f"{asking.path} already exists. Name another file, or replace it with --replace")
    code = code or click.prompt("Code (`weft hub token pair` at the hub shows it)", err=True)
    if len(spoken(code)) != CODE_CHARACTERS or not set(spoken(code)) <= set(CODE_ALPHABET):
        raise Refused(
            f"{code!r} is not a code: a code has {CODE_CHARACTERS} letters and digits, such as K7QF-9XDM-2RPT"
        )
    pending = asking.path + PENDING
    answer = _paired(url, code, asking, _secret(pending))
    with using(asking.path):
        os.replace(pending, asking.path)
        sync_folder(os.path.dirname(asking.path) or ".")
    if as_json:
        print_json({"file": asking.path, "tenant": answer.tenant, "edge": answer.edge, "until": answer.until})
        return
    ends = "" if answer.until is None else f", until {answer.until[:10]}"
    click.echo(f"wrote {asking.path}: this machine is edge {answer.edge} of tenant {answer.tenant}{ends}")
    if config_file is None:
        trust = f" --ca-file {ca_file}" if ca_file else ""
        click.echo(f"Next:\n  weft edge init --node {answer.edge} --hub {url} --token-file {asking.path}{trust}")


def _check_url(url: str, *, plain_http: bool) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(f"expected the URL of a hub, such as https://hub.example.com, got {url!r}")
    if parts.scheme == "http" and not Address(parts.hostname, 0).is_loopback and not plain_http:
        raise Refused(f"the code would cross the network in clear text to {url}. Use https, or add --plain-http")


def _asking(url: str, config_file: str | None, to: str | None, ca_file: str | None, *, replaces: bool) -> _Asking:
    if config_file is None:
        return _Asking(None, None, to or PAIRED_TOKEN_FILE, ClientTlsFiles(ca_file=ca_file), replaces)
    config = load_edge(config_file)
    named = {name: link for name, link in config.links.items() if url.rstrip("/") in {u.rstrip("/") for u in link.to}}
    if not named:
        known = ", ".join(url for link in config.links.values() for url in link.to) or "none"
        raise Refused(f"{config_file} has no link to {url}; there are: {known}")
    name, link = next(iter(named.items()))
    path = to or link.token_file
    if path is None:
        raise Refused(f"{config_file}: links.{name} has no token_file. Add `token_file: {PAIRED_TOKEN_FILE}` to it")
    files = ClientTlsFiles(ca_file=ca_file or link.ca_file, certificate=link.certificate, key=link.key)
    return _Asking(config.tenant, config.node, path, files, replaces)


def _secret(pending: str) -> str:
    """Return the token of an earlier try, or a new one that is on the disk before anything is asked."""
    if os.path.lexists(pending):
        try:
            with using(pending):
                return read_token(pending)
        except ValueError as error:
            raise Failed(f"{error}. Remove that file, and ask for a new code") from None
    token = new_token()
    write_new({pending: f"{token}\n".encode()})
    return token


def _paired(url: str, code: str, asking: _Asking, token: str) -> PairAnswer:
    try:
        tls = client_context(asking.tls) if url.startswith("https:") else None
    except TlsUnusable as error:
        raise Failed(str(error)) from None
    client = Client(url, tls=tls, timeout_s=ANSWER_S_MAX, bytes_max=ANSWER_BYTES_MAX)
    return _exchanged(client, PairRequest(code=code, sha256=hash_token(token), tenant=asking.tenant, edge=asking.edge))


def _exchanged(client: Client, request: PairRequest) -> PairAnswer:
    """Ask until the hub knows the code, or an error says that it will not."""
    for left in reversed(range(TRIES)):
        try:
            body = client.fetch(PAIR_PATH, msgspec.json.encode(request)).body
            return msgspec.json.decode(body, type=PairAnswer)
        except HubRefusal as refusal:
            if refusal.status == 403 and left:
                time.sleep(PAUSE_S)
                continue
            if not refusal.detail:
                message = "no hub answers there, or one of a release without pairing. Check the URL"
                raise Failed(f"{message} ({refusal.status})") from None
            raise Failed(f"{refusal.detail}: {refusal.advice}") from None
        except HubUnreachable as error:
            raise Failed(f"{error}. The same command continues with the same token") from None
        except msgspec.MsgspecError:
            raise Failed("the server at this URL is not a hub of this release. Check the URL") from None
    raise AssertionError("the last try returns or raises")


# ``weft edge rename``: rename the log of a stopped node to the name in its configuration.


@click.command("rename")
@config_argument
@click.option(
    "--wait", default="30s", show_default=True, help="Stop when no hub has acknowledged anything for this long."
)
@yes_option
@json_option
def edge_rename(config_file: str, wait: str, *, yes: bool, as_json: bool) -> None:
    """Rename the log of a stopped node to the `node` and `tenant` in CONFIG.

    Records that hubs have keep the former name; later records have the new one. The links first deliver everything
    under the former name and need tokens for that name until then. If a hub does not get everything, nothing is changed
    and the exit status is 1. If nothing was ever sent to a hub, all records in the log get the new name, and no hub is
    contacted.

    \b
    systemctl stop weft-edge
    weft edge rename edge.yaml
    weft edge rename edge.yaml --yes --json --wait 5m
    """
    config = load_edge(config_file)
    try:
        patience_s = parse_duration(wait)
    except ValueError as error:
        raise Refused(f"--wait: {error}") from None
    facts = _rename(config, patience_s, yes=yes)
    if as_json:
        print_json(facts)
    elif facts["renamed"]:
        click.echo(_renamed(facts))
    elif not facts["waiting"]:
        click.echo(f"the log in {config.data_dir} belongs to {facts['to']} already: nothing was changed")
    if facts["waiting"] and not facts["renamed"]:
        raise Failed(_undelivered(config_file, facts))


def _rename(config: EdgeConfig, patience_s: float, *, yes: bool) -> dict[str, Any]:
    from weft.edge_node.inspect.maintenance import NameUnknown, NotTheOwner, renaming

    # The command itself reports at its end why a link did not deliver; log lines would repeat that.
    logging.getLogger("weft.replication").addHandler(logging.NullHandler())
    try:
        with readable(NodeLog(config.data_dir, config)), renaming(config, SOFTWARE) as log:
            facts = {"renamed": False, "from": str(log.former), "to": str(log.name), "waiting": []}
            if log.former == log.name:
                return facts
            if not yes:
                confirm(_question(log), "nothing was renamed")
            with ordering(config.data_dir, f"{log.former} to {log.name}"):
                waiting = [] if log.is_unsent else asyncio.run(log.deliver(patience_s, _progress))
                facts |= {"all_records": log.is_unsent, "waiting": [_facts(each) for each in waiting]}
                if not any(each.records for each in waiting):
                    log.finish()
                    facts["renamed"] = True
            return facts
    except DirectoryInUse:
        raise Failed(
            f"a node runs with {config.data_dir}. Stop it first (systemctl stop weft-edge), then run this again"
        ) from None
    except (LogError, NameUnknown, NotTheOwner) as error:
        raise Failed(str(error)) from None


def _question(log: Renaming) -> str:
    if log.is_unsent:
        return f"rename {log.former} to {log.name}? No hub was sent anything, so all records take the new name"
    return f"rename {log.former} to {log.name}? Records that hubs have stay under {log.former}"


def _progress(records: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{counted(records, 'record')} to deliver", nl=not records, err=True)


def _facts(waiting: UndeliveredRecords) -> dict[str, Any]:
    return {"link": waiting.link, "stream": waiting.stream, "records": waiting.records, "trouble": waiting.trouble}


def _renamed(facts: dict[str, Any]) -> str:
    former, name = facts["from"], facts["to"]
    lines = [f"the log is {name}'s now; it was {former}'s"]
    if facts["all_records"]:
        lines.append(f"no hub was sent anything under {former}: all records in the log take the new name")
    else:
        lines.append(f"hubs keep their records under {former}; new records come under {name}")
    # Only losses are left undelivered: the hub gets no notice of them under the former name.
    lines += [
        f"link {each['link']}: the hub has no notice of the lost records of {each['stream']} ({each['trouble']})"
        for each in facts["waiting"]
    ]
    lines.append(f"a hub with tokens now needs one for {name}")
    return "\n".join(lines)


def _undelivered(config_file: str, facts: dict[str, Any]) -> str:
    waiting = [each for each in facts["waiting"] if each["records"]]
    lines = [f"weft: nothing was changed: hubs lack records that can only be sent under {facts['from']}:"]
    for each in waiting:
        count = counted(each["records"], "record")
        lines.append(f"  link {each['link']}: {count} of {each['stream']} ({each['trouble']})")
    lines.append(
        f"Run this again when the links work; until then their tokens must be those of {facts['from']}. To drop "
        f"the records instead: weft log drop {config_file} {waiting[0]['stream']} --all"
    )
    return "\n".join(lines)


# ``weft edge take-over``: bring the records of a lost peer to the hubs.

TAKE_OVER_POLL_S = 0.5


@click.command("take-over")
@target_argument
@json_option
def edge_take_over(target: str, *, as_json: bool) -> None:
    """Send what a running node keeps of its peer (`pair`) to the hubs, and wait until they have it.

    Name the node that is left by its CONFIG or its data_dir. The records reach the hubs under the lost node's own name.
    Hubs take each record once, and keep what came first. The hub's token needs the right `relay`. The command can be
    interrupted: the node continues.

    At the end it says up to when the copy has everything that the peer took in. Begin it only for a node that is gone,
    or has lost records. A node that comes back may report a conflict, if its hubs were out of reach since its start.
    While it is connected, such records wait.
    The command goes through DATA_DIR/control.sock, from the node's own user or root.

    \b
    weft edge take-over edge.yaml
    """
    directory = NodeLog.of(target).directory
    trouble = ""
    try:
        with ordering(directory, "the peer"):
            pair = ask_take_over(directory)
        while any(each["unsent"] for each in pair["copies"].values()):
            said = "; ".join(each["trouble"] for each in pair["copies"].values() if each["trouble"])
            if said and said != trouble:
                click.echo(f"waiting: {said}", err=True)
            trouble = said or trouble
            time.sleep(TAKE_OVER_POLL_S)
            pair = ask_take_over(directory)
    except ControlFailed as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json(pair)
        return
    for each in pair["copies"].values():
        name = f"{each['tenant']}/{each['node']} (log {each['log_id']})"
        took, had = counted(each["hubs_took"], "record"), counted(each["hubs_had"], "record")
        click.echo(f"{name}: the hubs took {took} of the copy, and had {had} under the same numbers before")
        for stream, count in each["not_carried"].items():
            click.echo(f"  {counted(count, 'record')} of {stream} stay here: no link of this node carries it")
        if waiting := _uncompared(each, pair):
            click.echo(f"  {counted(waiting, 'record')} wait: the node is connected, and has to reach its hubs first")
        if each["vouched"] and not waiting and not each["not_carried"]:
            click.echo(
                "  the node acknowledges nothing alone: copy and hubs have all that it acknowledged. If it is gone for "
                "good, end the lanes of this log at the hub: "
                f"`weft hub retire HUB {each['node']} --tenant {each['tenant']} --log {each['log_id']} "
                "--missing nothing --reason TEXT`"
            )
        elif each["complete_to"] is None:
            click.echo("  up to when the copy has everything that the node took in is unknown")
        else:
            until = datetime.fromtimestamp(each["complete_to"], UTC).strftime("%F %T UTC")
            click.echo(f"  the copy has everything that the node took in until {until}, by the node's clock")
    for name, why in pair["copies_unopened"].items():
        click.echo(f"the copy {name} cannot be opened, and stays as it is: {why}")


def _uncompared(copy: Mapping[str, Any], pair: Mapping[str, Any]) -> int:
    """Return the number of records that an order does not bring while the copy's node is connected."""
    is_there = any(each["connected"] and each["log_id"] == copy["log_id"] for each in pair["copies"].values())
    return copy["only_by_order"] if is_there else 0
