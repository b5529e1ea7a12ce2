"""What mistakes are made beside: a node and a hub that run, certificates, a read-only file system."""

from __future__ import annotations

import datetime
import os
import pwd
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from examples.demo.fabric import free_port
from tests.support.processes import publish
from tests.support.tokens import create_token, declare_in, withdraw_in
from tests.weft.mistakes.place import NOBODY, Place
from weft.config.units import approximate_size
from weft.edge_node.access import users
from weft.hub_api.rights import Scope

EDGE = """node: press-shop-1
data_dir: data
http: {{bind: '127.0.0.1:{http}'}}
listeners: {{mqtt: {{bind: '127.0.0.1:{mqtt}'}}}}
streams: {{telemetry: {{from: "plant/{{line}}/telemetry", retain: {{time: 1d}}}}}}
disk: {{budget: 64MiB}}
auth: {{users_file: users}}
"""
HUB = "store: store\nprocesses: 1\nlisten: 127.0.0.1:{port}\nanonymous: never\ntables: null\n"
TIMES = {"good": (-1, 2), "long": (-1, 1000), "other": (-1, 1000), "expired": (-20, -10)}
"""Certificate -> days from today on which it begins and ends."""


@contextmanager
def running(place: Place) -> Iterator[None]:
    """A node and a hub, named `<node>` and `<hub>` with what rows need of them."""
    http, mqtt, hub = free_port(), free_port(), free_port()
    edge_folder = place.folder({"edge.yaml": EDGE.format(http=http, mqtt=mqtt)})
    users.add(str(edge_folder / "users"), "anna", b"right")
    place.give_away(edge_folder)
    hub_folder = place.folder({"hub.yaml": HUB.format(port=hub)})
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
