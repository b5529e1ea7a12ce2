"""Archives of images, by the OCI Image Format Specification 1.0: layers, a configuration, a manifest, an index.

The same files give the same bytes: entries are sorted, belong to root or the image's user, and have one time.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

IMAGE = "application/vnd.oci.image"
LEVEL = 6
"""Of compression: nine takes three times as long for a hundredth of the bytes."""


class Layer(NamedTuple):
    """A layer in a file."""

    path: Path
    digest: str
    """SHA-256 of the compressed file."""
    content: str
    """SHA-256 of the archive in it, which the configuration names."""
    bytes_unpacked: int
    """Length of all files in it."""


def write_layer(path: Path, root: Path, names: Iterable[str], owner: Callable[[str], int], date_s: int) -> Layer:
    """Write files of a tree as a layer.

    Args:
        names: paths below ``root``.
        owner: user and group of a path.
        date_s: time of every file, in seconds since 1970.
    """
    unpacked = 0
    content = hashlib.sha256()
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed,
        tarfile.open(fileobj=_Hashed(packed, content), mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(names):
            member = archive.gettarinfo(root / name, name)
            if member.islnk():  # a second name of a file that may be in another layer
                member.type, member.linkname = tarfile.REGTYPE, ""
                member.size = (root / name).stat().st_size
            member.uid = member.gid = owner(name)
            member.uname = member.gname = ""
            member.mtime = date_s
            if member.isreg():
                unpacked += member.size
                with (root / name).open("rb") as source:
                    archive.addfile(member, source)
            else:
                archive.addfile(member)
    return Layer(path, _sha256(path), content.hexdigest(), unpacked)


class _Hashed(io.RawIOBase):
    """A file that hashes what it passes on."""

    def __init__(self, target: gzip.GzipFile, digest: hashlib._Hash) -> None:
        self._target, self._digest = target, digest

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return self._target.write(data)


def write_archive(
    target: Path, name: str, layers: Iterable[Layer], settings: Mapping[str, Any], *, architecture: str, created: str
) -> None:
    """Write an image as an OCI layout in a tar file, as ``podman load`` and ``skopeo copy oci-archive:`` take it.

    Args:
        name: of the image and its tag.
        settings: the ``config`` of the specification's image configuration.
        created: an instant of RFC 3339.
    """
    layers = list(layers)
    configuration = _json(
        {
            "created": created,
            "architecture": architecture,
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.content}" for layer in layers]},
            "history": [{"created": created, "created_by": layer.path.name} for layer in layers],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{IMAGE}.manifest.v1+json",
            "config": _described("config.v1+json", configuration),
            "layers": [
                {
                    "mediaType": f"{IMAGE}.layer.v1.tar+gzip",
                    "digest": f"sha256:{layer.digest}",
                    "size": layer.path.stat().st_size,
                }
                for layer in layers
            ],
        }
    )
    described = _described("manifest.v1+json", manifest) | {
        "platform": {"architecture": architecture, "os": "linux"},
        "annotations": {"org.opencontainers.image.ref.name": name},
    }
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": [described]}))
        for blob in (configuration, manifest):
            _add(archive, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
        for layer in layers:
            member = tarfile.TarInfo(f"blobs/sha256/{layer.digest}")
            member.size = layer.path.stat().st_size
            with layer.path.open("rb") as file:
                archive.addfile(member, file)


def _described(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": f"{IMAGE}.{kind}", "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


def _json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
