"""What goes beside the files of a release: components as they are installed, checksums, a signature that others check.

The commands with which a reader checks a release are those of the page.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.release import settle

pytestmark = [pytest.mark.slow, pytest.mark.processes]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/check-a-release.md"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
ENTRY = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)


def release(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.release", str(folder)]
    own = {name: value for name, value in os.environ.items() if name != "WEFT_SIGNING_KEY"}
    return subprocess.run(command, cwd=ROOT, env=own | environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with a signature, and its keys."""
    pytest.importorskip("cyclonedx_py")
    folder = tmp_path_factory.mktemp("release")
    (folder / "dist").mkdir()
    if (built := os.environ.get("WEFT_DISTRIBUTIONS")) is not None:
        # Without the images, whose copies would be gigabytes.
        shutil.copytree(built, folder / "dist", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.oci.tar"))
    else:
        (folder / f"dist/weft_fabric-{VERSION}-py3-none-any.whl").write_bytes(b"a wheel")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", folder / "key"], check=True)
    done = release(folder / "dist", WEFT_SIGNING_KEY=str(folder / "key"))
    assert done.returncode == 0, done.stderr
    (folder / "dist/weft-release.pub").write_text(f"weft-release {(folder / 'key.pub').read_text()}")
    return folder / "dist"


@pytest.fixture
def dist(made: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(made, tmp_path / "dist"))


def checked(folder: Path) -> int:
    """Exit status of the page's commands."""
    commands = PAGE.read_text().split("```sh\n")[1].split("```")[0]
    return subprocess.run(["sh", "-ec", commands], cwd=folder, capture_output=True, check=False).returncode


def test_the_page_s_commands_accept_the_release(dist: Path) -> None:
    assert checked(dist) == 0


def test_they_refuse_another_file_and_other_sums(dist: Path) -> None:
    listed = dist / f"weft-edge-{VERSION}.cdx.json"
    before = listed.read_bytes()
    listed.write_bytes(before + b" ")
    assert checked(dist) != 0
    # An attacker who changes the file can change its sum, and cannot sign it.
    subprocess.run("sha256sum $(cut -c67- SHA256SUMS) > new && mv new SHA256SUMS", shell=True, cwd=dist, check=True)
    assert checked(dist) != 0


def test_a_signature_for_another_purpose_is_none(dist: Path, made: Path) -> None:
    (dist / "SHA256SUMS.sig").unlink()
    key = made.parent / "key"
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "file", dist / "SHA256SUMS"], check=True)
    assert checked(dist) != 0


@pytest.mark.parametrize("kind", ["edge", "hub"])
def test_the_components_are_those_that_are_installed_with_their_hashes(made: Path, kind: str) -> None:
    document = json.loads((made / f"weft-{kind}-{VERSION}.cdx.json").read_text())
    wanted = (ROOT / f"deploy/requirements-{kind}.txt").read_text()
    components = document["components"]
    assert {(each["name"], each["version"]) for each in components} == set(ENTRY.findall(wanted))
    assert {text for each in components for text in sums(each)} == set(re.findall(r"sha256:(\w+)", wanted))
    about = document["metadata"]["component"]
    assert (about["name"], about["version"]) == ("weft-fabric", VERSION)


def sums(component: Mapping[str, Any]) -> list[str]:
    return [each["content"] for place in component["externalReferences"] for each in place.get("hashes", ())]


def test_a_source_distribution_does_not_say_when_and_by_whom_it_was_made(tmp_path: Path) -> None:
    made = []
    for time_s, names in ((1_700_000_000, ("a.py", "b.py")), (1_800_000_000, ("b.py", "a.py"))):
        path = tmp_path / "weft_fabric-1.0.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name in names:
                member = tarfile.TarInfo(f"weft_fabric-1.0/{name}")
                member.size, member.mtime, member.uid, member.uname = len(name), time_s, time_s % 1000, f"u{time_s}"
                archive.addfile(member, io.BytesIO(name.encode()))
        settle(path, 1_750_000_000)
        made.append(path.read_bytes())
        with tarfile.open(path) as archive:
            assert {each.name: each.mtime for each in archive}["weft_fabric-1.0/a.py"] == 1_750_000_000
            (tmp_path / "out").mkdir(exist_ok=True)
            archive.extractall(tmp_path / "out", filter="data")
        assert (tmp_path / "out/weft_fabric-1.0/b.py").read_text() == "b.py"
    assert made[0] == made[1]


def test_without_a_key_it_says_that_nothing_is_signed(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx_py")
    (tmp_path / "weft.whl").write_bytes(b"a wheel")
    done = release(tmp_path)
    assert (done.returncode, done.stdout) == (
        0,
        "SHA256SUMS is not signed: no key is given (--key, WEFT_SIGNING_KEY)\n",
    )
    assert not (tmp_path / "SHA256SUMS.sig").exists()


def test_what_is_signed_afterwards_is_what_was_built(tmp_path: Path, made: Path) -> None:
    (tmp_path / "weft.whl").write_bytes(b"a wheel")
    date = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    if date.returncode != 0:
        pytest.skip("this is no checkout, so the release has no date")
    assert release(tmp_path, SOURCE_DATE_EPOCH=date.stdout.strip()).returncode == 0
    built = (tmp_path / "SHA256SUMS").read_text()
    assert release(tmp_path, WEFT_SIGNING_KEY=str(made.parent / "key")).returncode == 0
    assert (tmp_path / "SHA256SUMS").read_text() == built
    assert (tmp_path / "SHA256SUMS.sig").exists()


def test_what_cannot_be_released_is_said(tmp_path: Path) -> None:
    assert "there is nothing to release" in release(tmp_path).stderr
    (tmp_path / "weft.whl").write_bytes(b"a wheel")
    assert "there is no such key" in release(tmp_path, WEFT_SIGNING_KEY=str(tmp_path / "none")).stderr
