"""Images as archives of the OCI Image Format, read, unpacked, and run as an ordinary user without a runtime.

What a runtime does of it is here done by ``unshare`` of util-linux: a user namespace in which the image's user is this
one, a read-only root, a volume, no capability.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from deploy.images import tree
from deploy.images.debian import NotHere
from deploy.images.tree import MACHINES
from examples.demo.fabric import Service

PROGRAMS = ("unshare", "setpriv", "mount")
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
NOBODY = 65534
"""The ordinary user, where the tests are root's."""
# $1: the root. $2: the volume. $3: the user. $4: the line that makes the kernel run another processor's programs by an
# emulator, only in this namespace (Linux 6.7). Then the command. As the namespace's root, which is an ordinary user.
_ROOM = """
mount --rbind "$1" "$1" && mount --bind "$2" "$1/var/lib/weft" && mount --rbind /proc "$1/proc" &&
mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/tmp" && mount -o remount,bind,ro "$1" || exit 99
if [ -n "$4" ]; then
  known=/proc/sys/fs/binfmt_misc
  mount -t binfmt_misc binfmt_misc "$known" && printf %s "$4" > "$known/register" || exit 99
fi
root=$1 user=$3; shift 4; cd "$root"
exec unshare --user --map-user="${user%:*}" --map-group="${user#*:}" --root="$root" --wd=/ "$@"
"""
# As root: folders of the tests are closed to others, so what the user needs is shown at another place.
_SHOWN = """
mount -t tmpfs -o mode=755 tmpfs /mnt && mkdir /mnt/root /mnt/volume && mount --bind "$1" /mnt/root &&
mount --bind "$2" /mnt/volume || exit 99
user=$3; shift 3
exec setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs "$@"
"""


class Image:
    """The image in an archive, checked against its digests."""

    def __init__(self, path: Path) -> None:
        self._archive = tarfile.open(path)
        index = json.loads(self._read("index.json"))
        assert json.loads(self._read("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        (self.described,) = index["manifests"]
        self.manifest = json.loads(self._blob(self.described))
        self.configuration: dict[str, Any] = json.loads(self._blob(self.manifest["config"]))
        self.settings: dict[str, Any] = self.configuration["config"]

    def unpack(self, root: Path) -> int:
        """Unpack the layers, whose files belong to the one who runs this. Returns the bytes of all files."""
        root.mkdir()
        total = 0
        contents = self.configuration["rootfs"]["diff_ids"]
        for layer, content in zip(self.manifest["layers"], contents, strict=True):
            with tarfile.open(fileobj=io.BytesIO(self._blob(layer)), mode="r:gz") as archive:
                archive.extraction_filter = lambda member, _: member  # not in every Python 3.11
                for member in archive:
                    assert not member.mode & 0o6022 or member.issym() or member.name == "tmp", member.name
                    assert (member.uid == 0) is (member.name != "var/lib/weft"), member.name
                    total += member.size
                    member.uid, member.gid = os.getuid(), os.getgid()
                    archive.extract(member, root)
            found = subprocess.run(
                ["sh", "-c", "gzip -dc | sha256sum"], input=self._blob(layer), capture_output=True, check=True
            )
            assert content == f"sha256:{found.stdout.decode().split()[0]}"
        return total

    def _blob(self, described: dict[str, Any]) -> bytes:
        kind, _, digest = described["digest"].partition(":")
        blob = self._read(f"blobs/{kind}/{digest}")
        assert (len(blob), hashlib.sha256(blob).hexdigest()) == (described["size"], digest)
        return blob

    def _read(self, name: str) -> bytes:
        file = self._archive.extractfile(name)
        assert file is not None
        return file.read()


def rootless(image: Image, root: Path, volume: Path) -> list[str]:
    """Return what stands before a command so that it runs in an unpacked image, as an ordinary user.

    Its environment has to be the image's.

    Args:
        volume: folder for ``/var/lib/weft``.

    Raises:
        LookupError: this machine does not let an ordinary user, or has no emulator; the sentence says why.
    """
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise LookupError(f"{', '.join(missing)}: not installed")
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    before, places = list[str](), [str(root), str(volume)]
    if os.getuid() == 0:
        os.chown(volume, NOBODY, NOBODY)
        before = ["unshare", "--mount", "sh", "-c", _SHOWN, "-", *places, str(NOBODY)]
        places = ["/mnt/root", "/mnt/volume"]
    if subprocess.run([*before[:2], *namespace, "true"], capture_output=True, check=False).returncode:
        raise LookupError("this machine allows no namespaces of users and mounts")
    line = _emulated(image.configuration["architecture"])
    mount = [*before[:2], *namespace, "mount", "-t", "binfmt_misc", "none", "/mnt"]
    if line and subprocess.run(mount, capture_output=True, check=False).returncode:
        raise LookupError("this machine's Linux has emulators only for all of it, and none for a namespace")
    return [*before, *namespace, "sh", "-c", _ROOM, "-", *places, image.settings["User"], line]


def _emulated(architecture: str) -> str:
    """Return the line by which ``binfmt_misc`` of Linux knows an architecture's programs; "" for this machine's own.

    Raises:
        LookupError: there is no emulator of it here.
    """
    machine = MACHINES[architecture]
    if machine == platform.machine():
        return ""
    emulator = shutil.which(f"qemu-{machine}-static")
    if emulator is None:
        raise LookupError(f"qemu-{machine}-static is not installed (Debian: apt install qemu-user-static)")
    # The ELF header: 64 bits, little-endian, version 1, any system; a program or a shared object (2, 3); the machine.
    # F: the emulator is opened now, since it is not in the root.
    magic = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + ELF_MACHINES[machine].to_bytes(2, "little")
    mask = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"
    escaped = ("".join(f"\\x{byte:02x}" for byte in each) for each in (magic, mask))
    return f":weft-{architecture}:M::{':'.join(escaped)}:{emulator}:F"


# --- An edge node of another machine: the tree of its image, run by an emulator of its processor (``qemu-user-
# static``)
#
# The emulator answers the system calls of the node with those of this machine: its files, its sockets, its SIGKILL.
# Its own memory counts as the node's, and its code is five to ten times slower than the processor's.


ROOT = Path(__file__).parents[2]
COPIED_NOT = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "__pycache__")


class EdgeTree:
    """The files of an edge's image.

    Args:
        architecture: Debian's name of it.
    """

    def __init__(self, folder: Path, architecture: str, wheel: Path) -> None:
        self.folder, self.architecture = folder, architecture
        folder.mkdir()
        tree.system(folder, architecture)
        tree.libraries(folder, architecture, "edge")
        tree.weft(folder, wheel)

    def put_into(self, service: Service, is_emulated: bool) -> None:
        """Have a service run from this tree, as a process of the emulator or, where it is this machine's, without."""
        machine = tree.MACHINES[self.architecture]
        if is_emulated:
            runner = [f"qemu-{machine}-static", "-L", str(self.folder)]
        else:
            loader = self.folder / f"lib64/ld-linux-{machine.replace('_', '-')}.so.2"
            runner = [str(loader), "--library-path", str(self.folder / f"usr/lib/{machine}-linux-gnu")]
        service.command = [*runner, str(self.folder / "usr/bin" / tree.interpreter()), "-m", "weft"]
        service.environment = {"PYTHONPATH": str(tree.packages(self.folder))}


def edge_tree(folder: Path, architecture: str, wheel: Path) -> EdgeTree:
    """Make a tree that an emulator runs here.

    Raises:
        LookupError: it cannot be made or run here; the sentence says why.
    """
    emulator = f"qemu-{tree.MACHINES[architecture]}-static"
    if platform.machine() != "x86_64":
        raise LookupError(f"this machine is {platform.machine()}: its own tests are those of its processor")
    if shutil.which(emulator) is None:
        raise LookupError(f"{emulator} is not installed (Debian: apt install qemu-user-static)")
    try:
        return EdgeTree(folder, architecture, wheel)
    except NotHere as error:
        raise LookupError(str(error)) from None


def build_wheel(folder: Path) -> Path:
    """Build Weft's wheel from a copy of this checkout."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=COPIED_NOT)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder / "dist"), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel
