"""``weft edge support-bundle`` and ``weft hub support-bundle``: what others need to help, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click
import msgspec

from weft.client import Client, HubRefusal, HubUnreachable
from weft.commands.common import ExistingPath, config_argument, json_option, load_edge, load_hub
from weft.commands.new_files import write_new
from weft.commands.running import certificate_of, tls_of
from weft.config.units import parse_bind
from weft.output import Failed, print_json

if TYPE_CHECKING:
    from weft.config.models import EdgeConfig, HubConfig


# Secrets of a node, to be kept out of what leaves its machine: those that are known, and what looks like one.

# Secrets are taken out by value and by shape. A list of harmless settings would lack each new one.
MASK = "[removed]"
FILE_BYTES_MAX = 256 << 10
"""Bytes of a file of secrets that are looked at."""
WORD_CHARACTERS_MIN = 6
"""Shorter words are too common in other texts to be taken out of them."""
WORDS_MAX = 20_000
_SECRET = re.compile(r"passw|secret|token|credential|authorization|passphrase|api_?key|private|\bkey\b|_key$", re.I)
"""Names of settings and variables of which a value may be a secret."""
_NAMES_A_FILE = re.compile(r"(_file|_env|_bytes|_max|_s|_id)$|^ca_file$")
_HOLDS = re.compile(r"(token|tokens|password|users|headers|key|secret)[a-z_]*$", re.I)
"""Names of settings whose file holds secrets."""
_SHAPES = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), MASK),
    (re.compile(r"(\w+://)[^/@\s\"']+@"), rf"\1{MASK}@"),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+", re.I), rf"\1 {MASK}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
    (re.compile(r"\$argon2[a-z]*\$[^\s\"']+"), MASK),
    (
        re.compile(
            r"((?:password|passwd|secret|token|signature|sig|api_?key)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;}]+", re.I
        ),
        rf"\1{MASK}",
    ),
)
"""Form of a secret, wherever it is -> what is left of it."""


class Secrets:
    """The secrets of one node.

    Args:
        settings: its configuration, as plain values.
        environment: variables of this process.
    """

    def __init__(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        words = set[str]()
        for name, value in environment.items():
            if _SECRET.search(name):
                words.add(value)
        for name, value in _leaves(settings):
            if _HOLDS.search(name) and os.path.isfile(value):
                words.update(_words_of(value))
            elif name.endswith("_env"):
                words.add(environment.get(value, ""))
        long = sorted((each for each in words if len(each) >= WORD_CHARACTERS_MIN), key=len, reverse=True)[:WORDS_MAX]
        self._known = re.compile("|".join(map(re.escape, long))) if long else None

    def removed_from(self, text: str) -> str:
        """Return a text without secrets."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for shape, left in _SHAPES:
            text = shape.sub(left, text)
        return text

    def settings(self, value: Any, name: str = "") -> Any:
        """Return plain values of a configuration without secrets. Names of files and of variables stay."""
        if isinstance(value, Mapping):
            return {key: self.settings(each, str(key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.settings(each, name) for each in value]
        if not isinstance(value, str):
            return value
        if _SECRET.search(name) and not _NAMES_A_FILE.search(name) and not os.path.isabs(value):
            return MASK
        return self.removed_from(value)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a configuration with the setting that it is the value of."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, str(key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each, name)
    elif isinstance(value, str):
        yield name, value


def _words_of(path: str) -> Iterator[str]:
    """Yield what may be a secret in a file: its words, also those behind a colon, and its lines."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(FILE_BYTES_MAX)
    except OSError:
        return  # what this user cannot read, the bundle cannot have
    for line in text.splitlines():
        if line.startswith("-----"):
            continue
        yield line.strip()
        # A name before a colon is that of a user, a setting or a header.
        yield from line.partition(":")[2].split() if ":" in line else line.split()


PART_BYTES_MAX = 2 << 20
"""Longest part; of a log the end counts, of others the begin."""
COMMAND_S_MAX = 60.0
LOG_LINES = 5000
_LIBRARIES = (
    "weft-fabric",
    "aiohttp",
    "argon2-cffi",
    "cbor2",
    "click",
    "cryptography",
    "deltalake",
    "msgspec",
    "obstore",
    "pyarrow",
    "pyspark",
    "pyyaml",
    "uvloop",
    "websockets",
    "zstandard",
)


class Bundle:
    """The parts of one archive, each without secrets and with a bound.

    Args:
        config: the node's configuration.
        environment: variables of this process, whose secrets are taken out.
    """

    def __init__(self, config: EdgeConfig | HubConfig, environment: Mapping[str, str]) -> None:
        plain = msgspec.to_builtins(config, enc_hook=str)
        self._secrets = Secrets(plain, environment)
        self.parts: dict[str, bytes] = {}
        self.missing: dict[str, str] = {}
        """Part -> why it is not there."""
        self.add_json("config.json", self._secrets.settings(plain))
        self.add_json("machine.json", _machine())

    def add(self, name: str, text: str) -> None:
        """Add a part. Of one that is too long the end counts."""
        data = self._secrets.removed_from(text[-PART_BYTES_MAX:]).encode()
        self.parts[name] = data[-PART_BYTES_MAX:]

    def add_json(self, name: str, value: Any) -> None:
        """Add a part from plain values."""
        self.add(name, json.dumps(value, indent=1, default=str) + "\n")

    def add_command(self, name: str, *arguments: str) -> None:
        """Add what a command of Weft says, or why it says nothing. It is a process of its own, and has its time."""
        self._add_run(name, [sys.executable, "-m", "weft", *arguments])

    def add_log(self, unit: str, path: str | None) -> None:
        """Add the end of a node's log: of a file, or what the journal of systemd has of a unit."""
        if path is not None:
            try:
                with open(path, "rb") as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - PART_BYTES_MAX))
                    self.add("log.txt", file.read(PART_BYTES_MAX).decode("utf-8", "replace"))
            except OSError as error:
                self.missing["log.txt"] = f"{path}: {error.strerror}"
        elif shutil.which("journalctl") is None:
            self.missing["log.txt"] = "there is no journal of systemd. Name the node's log with --log"
        else:
            self._add_run("log.txt", ["journalctl", "--no-pager", f"--lines={LOG_LINES}", f"--unit={unit}"])

    def write(self, path: str) -> None:
        """Write the archive, new and for its owner alone."""
        self.add_json("missing.json", self.missing)
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            for name, data in sorted(self.parts.items()):
                about = tarfile.TarInfo(f"weft-support/{name}")
                about.size, about.mode, about.mtime = len(data), 0o600, int(time.time())
                archive.addfile(about, io.BytesIO(data))
        write_new({path: made.getvalue()})

    def _add_run(self, name: str, command: Sequence[str]) -> None:
        try:
            done = subprocess.run(command, check=False, capture_output=True, timeout=COMMAND_S_MAX)
        except subprocess.TimeoutExpired:
            self.missing[name] = f"`{' '.join(command)}` took more than {COMMAND_S_MAX:.0f} s"
            return
        except OSError as error:
            self.missing[name] = f"`{' '.join(command)}`: {error.strerror}"
            return
        said = done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace")
        if not said.strip():
            self.missing[name] = f"`{' '.join(command)}` printed nothing (exit status {done.returncode})"
        else:
            self.add(name, said)


def _machine() -> dict[str, Any]:
    versions = {}
    for each in _LIBRARIES:
        try:
            versions[each] = metadata.version(each)
        except metadata.PackageNotFoundError:
            continue
    return {
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions,
        "python": sys.version,
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "memory": _lines("/proc/meminfo", 5),
        "uptime": _lines("/proc/uptime", 1),
    }


def _lines(path: str, count: int) -> list[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096).splitlines()[:count]
    except OSError:
        return []


# ``weft edge support-bundle``.

bundle_file_option = click.option(
    "--to", default="weft-support.tar.gz", show_default=True, metavar="FILE", help="Archive to write, new."
)
log_file_option = click.option("--log", "log_file", metavar="FILE", help="Log of the node, where no journal has it.")


@click.command("support-bundle")
@config_argument
@bundle_file_option
@log_file_option
@json_option
def edge_support_bundle(config_file: str, *, to: str, log_file: str | None, as_json: bool) -> None:
    """Write an archive for support: state, versions, settings, log, metrics, and the findings of the doctor.

    Tokens, passwords, their hashes and keys are removed. They are found in files that CONFIG names, in variables of the
    environment, and by their form. Names, topics and addresses stay. Payloads are not in it. Look into the archive
    before you send it.

    \b
    weft edge support-bundle edge.yaml --to press-7.tar.gz
    """
    config = load_edge(config_file)
    bundle = Bundle(config, os.environ)
    bundle.add_command("status.json", "edge", "status", config_file, "--json")
    bundle.add_command("doctor.json", "edge", "doctor", config_file, "--json")
    bundle.add_command("check.json", "edge", "check", config_file, "--json")
    bundle.add_command("links.json", "link", "status", config_file, "--json")
    bundle.add_log("weft-edge", log_file)
    if config.http is None:
        bundle.missing["metrics.txt"] = "the node has no `http`"
    else:
        add_metrics(bundle, config.http.bind, None, None)
    tell(bundle, to, as_json=as_json)


def add_metrics(bundle: Bundle, bind: str, token_file: str | None, certificate: str | None) -> None:
    """Add the metrics of a running node of this machine."""
    url = f"{'http' if certificate is None else 'https'}://{parse_bind(bind).from_here}"
    try:
        client = Client(url, token_file=token_file, tls=tls_of(certificate), timeout_s=10.0, bytes_max=16 << 20)
        bundle.add("metrics.txt", client.fetch("/metrics").body.decode("utf-8", "replace"))
    except (HubRefusal, HubUnreachable, OSError, ValueError) as error:
        bundle.missing["metrics.txt"] = str(error)


def tell(bundle: Bundle, to: str, *, as_json: bool) -> None:
    """Write the archive, and say what is in it."""
    if os.path.lexists(to):
        raise Failed(f"{to} already exists. Name another file with --to")
    bundle.write(to)
    if as_json:
        print_json({"file": to, "parts": sorted(bundle.parts), "missing": bundle.missing})
        return
    click.echo(f"wrote {to}: {', '.join(sorted(bundle.parts))}")
    for name, why in sorted(bundle.missing.items()):
        click.echo(f"without {name}: {why}", err=True)


# ``weft hub support-bundle``.


@click.command("support-bundle")
@config_argument
@bundle_file_option
@log_file_option
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with an admin token.")
@json_option
def hub_support_bundle(
    config_file: str, *, to: str, log_file: str | None, token_file: str | None, as_json: bool
) -> None:
    """Write an archive for support: state, versions, settings, log, metrics, and the findings of the doctor.

    Secrets are removed as by `weft edge support-bundle`. A hub with tokens gives its state and metrics only for an
    admin token. Look into the archive before you send it.

    \b
    weft hub support-bundle hub.yaml --token-file admin.token
    """
    config = load_hub(config_file)
    bundle = Bundle(config, os.environ)
    with_token = () if token_file is None else ("--token-file", token_file)
    bundle.add_command("status.json", "hub", "status", config_file, "--json", *with_token)
    bundle.add_command("nodes.json", "hub", "nodes", config_file, "--json")
    bundle.add_command("doctor.json", "hub", "doctor", config_file, "--json")
    bundle.add_command("check.json", "hub", "check", config_file, "--json", "--offline")
    bundle.add_log("weft-hub", log_file)
    add_metrics(bundle, config.listen, token_file, certificate_of(config))
    tell(bundle, to, as_json=as_json)
