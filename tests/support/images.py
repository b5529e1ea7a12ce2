"""Images as archives of the OCI Image Format, read, unpacked, and run as an ordinary user without a runtime.

What a runtime does of it is here done by ``unshare`` of util-linux: a user namespace in which the image's user is this
one, a read-only root, a volume, no capability.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

PROGRAMS = ("unshare", "setpriv", "mount")
NOBODY = 65534
"""The ordinary user, where the tests are root's."""
# $1: the root. $2: the volume. Then the user, and the command. As the namespace's root, which is an ordinary user.
_ROOM = """
mount --rbind "$1" "$1" && mount --bind "$2" "$1/var/lib/weft" && mount --rbind /proc "$1/proc" &&
mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/tmp" && mount -o remount,bind,ro "$1" || exit 99
root=$1 user=$3; shift 3; cd "$root"
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
        LookupError: this machine does not let an ordinary user; the sentence says why.
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
    return [*before, *namespace, "sh", "-c", _ROOM, "-", *places, image.settings["User"]]
