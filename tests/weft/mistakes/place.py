"""One row of the table of mistakes."""

from __future__ import annotations

import contextlib
import datetime
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from examples.demo.fabric import free_port
from tests.support import forked
from tests.support.processes import publish
from tests.support.tokens import create_token, declare_in, withdraw_in
from tests.support.waiting import wait_until
from weft.config.units import approximate_size
from weft.edge_node.access import users
from weft.hub_api.rights import Scope

EDGE = "edge.yaml"
HUB = "hub.yaml"
NODE = "node: press-shop-7\ndata_dir: data\n"
STREAM = (
    NODE + 'streams: {telemetry: {from: "plant/{line}/telemetry", retain: {time: 1d}}}\n' + "disk: {budget: 64MiB}\n"
)
QUIET = STREAM + "http: null\nlisteners: {mqtt: null}\n"
"""A node that listens nowhere."""


@dataclass(frozen=True)
class Mistake:
    """What a person did, and what the command says to it.

    ``<...>`` in files, commands and messages stands for a value of the run: ``<dir>`` for the folder of the mistake,
    ``<busy>`` for a port that is taken, others as ``surroundings`` names them.
    """

    did: str
    command: str
    message: str
    """All that is printed on standard error, or on standard output where that is empty."""
    exit_status: int = 2
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """What is in the folder: ``name@0600`` has that mode, ``name/`` is a folder."""
    given: str = ""
    """Standard input."""
    in_process: bool = False
    """Whether the command may run in the test's own process: it neither serves nor meets rights or a terminal."""
    needs: str = ""
    """A value of the run that some machines do not have; without it the row is skipped."""

    @property
    def arguments(self) -> list[str]:
        """The command as a shell splits it; placeholders may hold spaces."""
        return shlex.split(self.command)


def edge(text: str | bytes, **files: str | bytes) -> dict[str, str | bytes]:
    """An edge's configuration, and other files by their names."""
    return {EDGE: text, **files}


def hub(text: str | bytes, **files: str | bytes) -> dict[str, str | bytes]:
    """A hub's configuration, and other files by their names."""
    return {HUB: text, **files}


# --- Where a mistake is made: a folder of its own, a port that is taken, and the commands that are run there


RUN_S_MAX = 30.0
NOBODY = 65_534
"""User that commands run as where the tests run as root, who may read every file and bind every port."""
BUCKET = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_REGION": "here",
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
}
"""Where buckets are looked for: at a port that nothing listens at."""
_TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}\S* ", re.MULTILINE)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
_PROBE = re.compile(r"probe/[0-9a-f]{16}")
"""Where a hub tries its store: a fresh name each time."""


@dataclass(frozen=True)
class Said:
    """What a command did."""

    exit_status: int
    stdout: str
    stderr: str


class Place:
    """One folder for each mistake, in one for all, that belongs to the user who makes them."""

    def __init__(self, root: Path, busy_port: int) -> None:
        self._root = root
        self._count = 0
        self._names: dict[str, str] = {"<busy>": str(busy_port)}

    def name(self, placeholder: str, value: object) -> None:
        """Let ``<...>`` in files, commands and messages stand for a value of this run."""
        self._names[placeholder] = str(value)

    def folder(self, files: Mapping[str, str | bytes]) -> Path:
        """Make a folder with files; a name that ends with a slash is a folder, ``name@0600`` has a mode."""
        self._count += 1
        folder = self._root / f"m{self._count}"
        folder.mkdir()
        for each, content in files.items():
            name, _, mode = each.partition("@")
            path = folder / name
            path.parent.mkdir(exist_ok=True, parents=True)
            if name.endswith("/"):
                path.mkdir(exist_ok=True)
            elif isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(self.filled(content, folder))
            path.chmod(int(mode, 8) if mode else 0o755 if path.is_dir() else 0o640)
        self.give_away(folder)
        return folder

    def give_away(self, folder: Path) -> None:
        """Make a folder and all in it the user's who makes the mistakes."""
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    def filled(self, text: str, folder: Path) -> str:
        """A text of the table with the values of this run."""
        for placeholder, value in {**self._names, "<dir>": str(folder)}.items():
            text = text.replace(placeholder, value)
        return text

    def emptied(self, text: str, folder: Path) -> str:
        """What a command printed, as it stands in the table."""
        for placeholder, value in {"<dir>": str(folder), **self._names}.items():
            # The user who runs the tests may be called as a topic is.
            before = "(?:(?<=user )|(?<=-o ))" if placeholder == "<user>" else ""
            if value:
                # As a template of re.sub a backslash would have a meaning.
                template = placeholder.replace("\\", r"\\")
                text = re.sub(rf"{before}(?<![\w-]){re.escape(value)}(?![\w-])", template, text)
        return _PROBE.sub("probe/<key>", _MOMENT.sub("<time>", _TIME.sub("", text))).strip()

    def start(self, arguments: list[str], folder: Path, given: str = "") -> subprocess.Popen[Any]:
        """Start a command in a folder, with ``given`` as its standard input; files beside the folder take its output.

        It has no terminal that it could ask at.
        """
        variables = {name: value for name, value in os.environ.items() if name != "WEFT_TRACEBACK"} | BUCKET
        user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        with open(f"{folder}.stdout", "wb") as out, open(f"{folder}.stderr", "wb") as errors:
            process: subprocess.Popen[Any] = forked.Popen(
                [sys.executable, "-m", "weft", *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                cwd=folder,
                env=variables,
                start_new_session=True,
                **user,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:  # it did not want it
            process.stdin.write(given.encode())
        return process

    @contextmanager
    def serving(self, kind: str, folder: Path) -> Iterator[None]:
        """Run the ``edge`` or ``hub`` of a folder's configuration for as long as the context lasts."""
        printed = Path(f"{folder}.stdout")
        process = self.start([kind, "run", f"{kind}.yaml"], folder)
        try:
            wait_until(lambda: process.poll() is not None or (printed.exists() and "ready" in printed.read_text()))
            assert process.poll() is None, Path(f"{folder}.stderr").read_text()
            yield
        finally:
            process.terminate()
            process.wait(RUN_S_MAX)

    def run(self, arguments: list[str], folder: Path, given: str = "") -> Said:
        """Run a command to its end."""
        process = self.start(arguments, folder, given)
        try:
            process.wait(RUN_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        stdout, stderr = (self.emptied(Path(f"{folder}.{name}").read_text(), folder) for name in ("stdout", "stderr"))
        return Said(process.returncode, stdout, stderr)


@contextmanager
def made() -> Iterator[Place]:
    """A place that leaves nothing behind."""
    root = Path(tempfile.mkdtemp(prefix="weft-mistakes-"))
    root.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        try:
            yield Place(root, taken.getsockname()[1])
        finally:
            for folder, names, _ in os.walk(root):
                for name in names:  # rows about rights have closed some even to their owner
                    os.chmod(os.path.join(folder, name), 0o700)
            shutil.rmtree(root)


# --- What mistakes are made beside: a node and a hub that run, certificates, a read-only file system


SURROUNDINGS_EDGE = """node: press-shop-1
data_dir: data
http: {{bind: '127.0.0.1:{http}'}}
listeners: {{mqtt: {{bind: '127.0.0.1:{mqtt}'}}}}
streams: {{telemetry: {{from: "plant/{{line}}/telemetry", retain: {{time: 1d}}}}}}
disk: {{budget: 64MiB}}
auth: {{users_file: users}}
"""
SURROUNDINGS_HUB = "store: store\nprocesses: 1\nlisten: 127.0.0.1:{port}\nanonymous: never\ntables: null\n"
TIMES = {"good": (-1, 2), "long": (-1, 1000), "other": (-1, 1000), "expired": (-20, -10)}
"""Certificate -> days from today on which it begins and ends."""


@contextmanager
def running(place: Place) -> Iterator[None]:
    """A node and a hub, named `<node>` and `<hub>` with what rows need of them."""
    http, mqtt, hub = free_port(), free_port(), free_port()
    edge_folder = place.folder({"edge.yaml": SURROUNDINGS_EDGE.format(http=http, mqtt=mqtt)})
    users.add(str(edge_folder / "users"), "anna", b"right")
    place.give_away(edge_folder)
    hub_folder = place.folder({"hub.yaml": SURROUNDINGS_HUB.format(port=hub)})
    tokens = str(hub_folder / "tokens")
    for name, edge in (("shop", "press-shop-7"), ("other", "press-shop-8"), ("revoked", "press-shop-7")):
        (hub_folder / f"{name}.token").write_text(create_token(tokens, name, Scope.EDGE, edge=edge))
    (hub_folder / "bi.token").write_text(create_token(tokens, "bi", Scope.READER))
    declare_in(hub_folder / "store", tokens, shards=16)
    withdraw_in(hub_folder / "store", "revoked")
    place.give_away(hub_folder)
    with place.serving("edge", edge_folder), place.serving("hub", hub_folder):
        publish(mqtt, "plant/a/telemetry", ['{"temperature": 20}', "not JSON"])
        names = {
            "<node>": edge_folder,
            "<hub>": hub_folder,
            "<node http>": http,
            "<node mqtt>": mqtt,
            "<hub port>": hub,
        }
        for placeholder, value in names.items():
            place.name(placeholder, value)
        yield


def files_of(place: Place, folder: Path) -> None:
    """Make the files that rows name instead of writing them: `<good.crt>`, `<users>`."""
    for name, (first, last) in TIMES.items():
        _certificate(folder, name, first, last)
    users.add(str(folder / "users"), "anna", b"right")
    for path in folder.iterdir():
        place.name(f"<{path.name}>", path.read_text())
    today = datetime.datetime.now(datetime.UTC)
    for name, certificate in (("<soon>", "good"), ("<past>", "expired")):
        place.name(name, f"{today + datetime.timedelta(days=TIMES[certificate][1]):%Y-%m-%d}")


def machine(place: Place) -> None:
    """Name what differs between machines; what one lacks has an empty name."""
    user = NOBODY if os.geteuid() == 0 else os.geteuid()
    first_free = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    disk = os.statvfs(tempfile.gettempdir())
    place.name("<user>", pwd.getpwuid(user).pw_name)
    place.name("<disk>", approximate_size(disk.f_blocks * disk.f_frsize))
    place.name("<low>", 883 if first_free > 883 else "")
    place.name("<readonly>", read_only() or "")
    place.name("<spark>", "pyspark-is-installed" if find_spec("pyspark") else "")


def read_only() -> str | None:
    """A folder on a file system that no user may write to; None where there is none."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, folder, kind, options, *_ = line.split()
        if "ro" in options.split(",") and kind not in ("proc", "sysfs") and os.path.isdir(folder):
            return folder
    return None


def _certificate(folder: Path, name: str, first: int, last: int) -> None:
    key, today = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today + datetime.timedelta(days=first))
        .not_valid_after(today + datetime.timedelta(days=last))
        .sign(key, hashes.SHA256())
    )
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    encryptions: dict[str, serialization.KeySerializationEncryption] = {name: serialization.NoEncryption()}
    if name == "good":
        encryptions["encrypted"] = serialization.BestAvailableEncryption(b"secret")
    for each, encryption in encryptions.items():
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        (folder / f"{each}.key").write_bytes(pem)
