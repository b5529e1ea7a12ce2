"""Images of edge and hub: their size, what they say of themselves, and that they serve as an ordinary user."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.images.build import NOT_HERE, settings
from deploy.images.stripping import strip
from deploy.images.tree import MACHINES
from examples.demo.fabric import free_port, get_json
from tests.support.images import Image, build_wheel, rootless
from tests.support.processes import publish
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
HERE = next((name for name, machine in MACHINES.items() if machine == platform.machine()), "amd64")
"""Architecture of the image that runs on this machine."""
MEGABYTES_MAX = {"edge": 120, "hub": 600}
CONFIGURATIONS = {
    "edge": """\
node: press-shop-7
data_dir: /var/lib/weft
listeners: {{mqtt: {{bind: "127.0.0.1:{port}"}}}}
http: {{bind: "127.0.0.1:{http}"}}
disk: {{budget: 100MB}}
streams: {{telemetry: {{from: "plant/#"}}}}
""",
    "hub": """\
listen: "127.0.0.1:{http}"
store: /var/lib/weft/store
processes: 1
""",
}
PROBE = """
import os, ssl, zoneinfo
zoneinfo.ZoneInfo("Europe/Berlin")
rights = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm"))]
def refused(path):
    try:
        open(path, "w")
    except OSError:
        return True
print(os.getuid(), os.getgid(), {int(each, 16) for each in rights}, os.environ["PATH"],
      ssl.create_default_context().cert_store_stats()["x509"] > 100, refused("/opt/weft/x"), refused("/etc/x"))
"""


def build(folder: Path, kind: str, architecture: str) -> Path:
    """The archive of `./run build`, or one that is made here."""
    built = Path(os.environ.get("WEFT_DISTRIBUTIONS", folder / "dist")).resolve()
    if not list(built.glob(f"weft-{kind}-*-{architecture}.oci.tar")):
        if not list(built.glob("*.whl")):
            build_wheel(folder)
        command = ["deploy.images.build", str(built), f"--kind={kind}", f"--architecture={architecture}"]
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == NOT_HERE:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr[-2000:]
    (path,) = built.glob(f"weft-{kind}-*-{architecture}.oci.tar")
    return path


@contextmanager
def running(kind: str, image: Image, folder: Path, **ports: int) -> Iterator[str]:
    """The image's own command as an ordinary user, until it has stopped by its signal. Its first line."""
    (folder / f"root/etc/weft/{kind}.yaml").write_text(CONFIGURATIONS[kind].format(**ports))
    environment = dict(each.split("=", 1) for each in image.settings["Env"])
    (folder / "volume").mkdir()
    try:
        entered = rootless(image, folder / "root", folder / "volume")
    except LookupError as error:
        pytest.skip(str(error))
    asked = subprocess.run(
        [*entered, "python", "-c", PROBE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    user = image.settings["User"].replace(":", " ")
    assert (asked.stdout, asked.stderr) == (f"{user} {{0}} {environment['PATH']} True True True\n", "")
    process = subprocess.Popen([*entered, *image.settings["Cmd"]], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert "ready" in ready
        yield ready
        assert image.settings["StopSignal"] == "SIGTERM"
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def check(kind: str, architecture: str, folder: Path) -> Image:
    """Unpack an image into ``folder``; its size, and what it has not."""
    image = Image(build(folder, kind, architecture))
    assert image.described["platform"] == {"architecture": architecture, "os": "linux"}
    assert image.configuration["architecture"] == architecture
    assert image.settings == json.loads(json.dumps(settings(kind)))
    megabytes = image.unpack(folder / "root") / 1e6
    print(f"{kind}, {architecture}: {megabytes:.0f} MB")
    assert megabytes < MEGABYTES_MAX[kind]
    for name in ("bin/sh", "bin/bash", "usr/bin/apt", "usr/bin/dpkg", "usr/bin/pip", "usr/bin/perl"):
        assert not (folder / "root" / name).exists()
    assert (folder / "root/var/lib/dpkg/status.d/libc6").read_text().startswith("Package: libc6\n")
    return image


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_an_edge_serves_from_its_image_as_an_ordinary_user(tmp_path: Path) -> None:
    image = check("edge", HERE, tmp_path)
    port, http = free_port(), free_port()
    with running("edge", image, tmp_path, port=port, http=http) as ready:
        assert ready.startswith("default/press-shop-7 is ready")
        publish(port, "plant/press/m1/telemetry", ["21.5"])
        assert get_json(f"http://127.0.0.1:{http}/status")["streams"]["telemetry"]["durable_end"] == 1


@pytest.mark.search
@pytest.mark.processes
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not SLICE.is_night, reason="all images take minutes: only ./run nightly has the time")
@pytest.mark.parametrize("architecture", MACHINES)
@pytest.mark.parametrize("kind", MEGABYTES_MAX)
def test_every_image_is_small_and_whole(tmp_path: Path, kind: str, architecture: str) -> None:
    image = check(kind, architecture, tmp_path)
    # The other architecture's by an emulator.
    port, http = free_port(), free_port()
    with running(kind, image, tmp_path, port=port, http=http):
        if kind == "hub":
            assert get_json(f"http://127.0.0.1:{http}/v1/streams")["streams"] == []
        else:
            publish(port, "plant/press/m1/telemetry", ["21.5"])
            assert get_json(f"http://127.0.0.1:{http}/status")["streams"]["telemetry"]["durable_end"] == 1


def test_an_image_says_what_the_recipe_says(tmp_path: Path) -> None:
    recipe = tmp_path / "Containerfile"
    recipe.write_text(
        "FROM x AS build\nUSER 7\nFROM x AS base\nENV PATH=/a:$PATH B=1\nUSER 10001\nVOLUME /v\nSTOPSIGNAL SIGTERM\n"
        'FROM base AS edge\nENV C=2\nCMD ["weft", "edge"]\nFROM base AS hub\nENV D=3\nCMD ["weft", "hub"]\n'
    )
    assert settings("edge", recipe) == {
        "User": "10001:10001",
        "Volumes": {"/v": {}},
        "StopSignal": "SIGTERM",
        "Cmd": ["weft", "edge"],
        "Env": ["PATH=/a:/usr/bin:/bin", "B=1", "C=2"],
        "WorkingDir": "/",
    }


def test_only_a_compiled_file_is_cut(tmp_path: Path) -> None:
    text = tmp_path / "x.so"
    text.write_bytes(b"INPUT(libx.so)" * 10_000)
    assert strip(text) == 0
    assert text.read_bytes() == b"INPUT(libx.so)" * 10_000
    compiled = tmp_path / "python"
    compiled.write_bytes(Path(os.path.realpath(sys.executable)).read_bytes() + bytes(100_000))
    compiled.chmod(0o755)
    before = compiled.stat().st_size
    saved = strip(compiled)
    assert saved >= 100_000
    assert compiled.stat().st_size == before - saved
    home = {"PYTHONHOME": sys.base_prefix}
    done = subprocess.run([compiled, "-c", "print(6 * 7)"], env=os.environ | home, capture_output=True, check=False)
    assert done.stdout == b"42\n", done.stderr
