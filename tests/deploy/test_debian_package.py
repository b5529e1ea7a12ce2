"""The Debian packages of edge node and hub: installed, run, upgraded, removed and purged in a clean Debian.

In one test ``systemd-nspawn`` boots that Debian. In the others no systemd runs: the unit's command starts the node,
as the unit's user, and a program in the place of systemctl notes what the packages' scripts would have systemd do.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from deploy.debian.build import COMMAND_PATH, NOT_HERE, PACKAGES, changelog, debian_version, describe
from deploy.images.tree import MACHINES, put
from examples.demo.fabric import free_port, get_json
from tests.end_to_end.test_kills import STREAM, Load, check_every_message
from tests.support.debian_root import PYTHON, DebianRoot, booted_debian, debian_root
from tests.support.processes import Node, publish, weft
from tests.support.waiting import PATIENCE_S, wait_until
from weft.storage.object_store import open_store

ROOT = Path(__file__).parents[2]
HERE = next((name for name, machine in MACHINES.items() if machine == platform.machine()), "amd64")
"""Architecture of the packages that run on this machine."""
UNITS = "usr/lib/systemd/system"
PAGE = ROOT / "docs/how-to/install-by-package.md"
CARD = ROOT / "docs/how-to/prepare-a-memory-card.md"
CODE = re.compile(r"\b[0-9A-Z]{4}(?:-[0-9A-Z]{4}){2}\b")
"""A code of pairing."""
CONFIG = "etc/weft/edge.yaml"
COPIED_NOT = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "__pycache__")
SYSTEMCTL = """\
#!/bin/sh
echo "$(dpkg-query --show --showformat='${Version}' weft-edge) $*" >>/systemctl.said
case "$*" in *is-active*) [ -e /is-active ] ;; esac
"""
EXPOSURE_MAX = "30"
"""In tenths: below 3 of 10 by systemd's own count."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel: that of `./run build`, or one that is made here."""
    folder = Path(os.environ.get("WEFT_DISTRIBUTIONS", tmp_path_factory.mktemp("dist"))).resolve()
    if not list(folder.glob("*.whl")):
        source = tmp_path_factory.mktemp("source") / "weft"
        shutil.copytree(ROOT, source, ignore=COPIED_NOT)
        built(["build", "--wheel", "--outdir", str(folder), str(source)])
    return folder


@pytest.fixture(scope="module")
def package(dist: Path) -> Path:
    """The package of the edge node."""
    return package_of(dist, "edge")


@pytest.fixture(scope="module")
def hub_package(dist: Path) -> Path:
    """The package of the hub."""
    return package_of(dist, "hub")


def package_of(dist: Path, kind: str, architecture: str = HERE) -> Path:
    if not list(dist.glob(f"weft-{kind}_*_{architecture}.deb")):
        command = ["deploy.debian.build", str(dist), "--kind", kind, "--architecture", architecture, "--compress=zstd"]
        built(command)
    (path,) = dist.glob(f"weft-{kind}_*_{architecture}.deb")
    return path


def built(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == NOT_HERE:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def later(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same package with a later version."""
    return later_of(package, tmp_path_factory.mktemp("later"))


def later_of(package: Path, folder: Path) -> Path:
    subprocess.run(["dpkg-deb", "--raw-extract", package, folder / "files"], check=True)
    control = folder / "files/DEBIAN/control"
    text = control.read_text()
    assert "Version: 0" in text
    control.write_text(text.replace("Version: 0", "Version: 99"))
    files, made = str(folder / "files"), str(folder / "later.deb")
    command = ["dpkg-deb", "-Zzstd", "-z1", "--root-owner-group", "--build", files, made]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "later.deb"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> DebianRoot:
    try:
        return debian_root(tmp_path_factory.mktemp("room"))
    except LookupError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def room(bare: DebianRoot, package: Path) -> DebianRoot:
    """A Debian in which the package was installed."""
    install(bare, package)
    return bare


def install(room: DebianRoot, *packages: Path) -> None:
    names = [f"weft-{number}.deb" for number, _ in enumerate(packages)]
    for name, package in zip(names, packages, strict=True):
        shutil.copyfile(package, room.folder / name)
    room.did("apt-get", "install", "--yes", *(f"/{name}" for name in names))


def settings_of(unit: Path) -> dict[str, str]:
    lines = (line for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


@contextmanager
def running(room: DebianRoot, unit: str = "weft-edge") -> Iterator[str]:
    """What runs under the unit's command, until it has stopped by SIGTERM. Its first line."""
    process = room.service(settings_of(room.folder / UNITS / f"{unit}.service"))
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if "is ready" in line), "")
        assert ready
        yield ready
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def kept(room: DebianRoot) -> str:
    return room.did("weft", "edge", "tail", "/etc/weft/edge.yaml", "telemetry", user="weft-edge")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_data_and_configuration_survive_upgrade_and_removal_and_no_purge(
    room: DebianRoot, package: Path, later: Path
) -> None:
    config, port = room.folder / CONFIG, free_port()
    assert "is good" in room.did("weft", "edge", "check", "/etc/weft/edge.yaml", user="weft-edge")
    init = ("weft", "edge", "init", "/etc/weft/edge.yaml", "--node", "press-shop-7", "--listen", f"127.0.0.1:{port}")
    assert "sudo systemctl enable --now weft-edge" in room.did(*init, user="weft-edge")
    config.write_text(config.read_text() + f'http: {{bind: "127.0.0.1:{free_port()}"}}\n')
    for name in ("users", "hub.yaml"):
        (config.parent / name).write_text("")
    with running(room) as ready:
        assert ready.startswith("default/press-shop-7 is ready")
        publish(port, "plant/press/m1/telemetry", ["21.5"])
    assert "21.5" in kept(room)

    install(room, later)
    assert 'node: "press-shop-7"' in config.read_text()
    with running(room):
        publish(port, "plant/press/m1/telemetry", ["22.5"])
    assert all(value in kept(room) for value in ("21.5", "22.5"))
    assert room.did("find", "/var/lib/weft", "!", "-user", "weft-edge") == ""

    room.did("apt-get", "remove", "--yes", "weft-edge")
    assert not (room.folder / "usr/lib/weft-edge").exists()
    assert 'node: "press-shop-7"' in config.read_text()
    install(room, later)
    assert "22.5" in kept(room)

    room.did("apt-get", "purge", "--yes", "weft-edge")
    assert [each for each in ("var/lib/weft", "usr/lib/weft-edge") if (room.folder / each).exists()] == []
    assert os.listdir(config.parent) == ["hub.yaml"]
    assert room.did("id", "--name", "--user", "weft-edge") == "weft-edge\n"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_the_unit_is_good_where_it_is_installed(room: DebianRoot, package: Path, tmp_path: Path) -> None:
    install(room, package)
    unit_is_good(room, "weft-edge.service", tmp_path)


def unit_is_good(room: DebianRoot, name: str, folder: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = folder / name
    # It looks for the command on this machine, and has no root that says otherwise for it.
    unit.write_text((room.folder / UNITS / name).read_text().replace("ExecStart=/", f"ExecStart={room.folder}/"))
    alone = {**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:"}
    for question in (
        ["verify", "--man=no", "--recursive-errors=no", str(unit)],
        ["security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit)],
    ):
        done = subprocess.run(["systemd-analyze", *question], capture_output=True, text=True, check=False, env=alone)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout[-500:]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_a_shell_completes_and_man_finds_pages(room: DebianRoot, package: Path) -> None:
    install(room, package)
    asked = (
        ". /usr/share/bash-completion/completions/weft; COMP_WORDS=(weft {} ''); COMP_CWORD=2; "
        "_weft_completion weft; echo ${{COMPREPLY[@]}}"
    )
    # `weft hub` too, whose commands need libraries that the package has not.
    for group, command in (("edge", "init"), ("hub", "status")):
        assert command in room.did("bash", "-c", asked.format(group)).split()
    pages = {path.name for path in (room.folder / "usr/share/man/man1").iterdir()}
    assert {"weft.1.gz", "weft-edge-run.1.gz", "weft-edge-init.1.gz"} <= pages


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_it_lists_what_it_is_made_of_and_nothing_of_where_it_was_made(room: DebianRoot, package: Path) -> None:
    install(room, package)
    text = (room.folder / "usr/share/doc/weft-edge/sbom.cdx.json").read_text()
    document = json.loads(text)
    components = (document["metadata"]["component"], *document["components"])
    listed = sorted(f"{each['name'].lower().replace('-', '_')}-{each['version']}.dist-info" for each in components)
    (libraries,) = room.folder.glob("usr/lib/weft-edge/lib/python3*/site-packages")
    assert listed == sorted(path.name.lower() for path in libraries.glob("*.dist-info"))
    places = [path for path in room.folder.glob("usr/lib/weft-edge/**/*.pyc") if b"/stage/" in path.read_bytes()]
    assert (places, "/tmp/" in text) == ([], False)
    room.did("dpkg", "--verify", "weft-edge")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_a_package_of_another_architecture_has_the_same_files_for_it(package: Path, dist: Path, tmp_path: Path) -> None:
    (other,) = set(MACHINES) - {HERE}
    files = dict[str, dict[str, bytes]]()
    for architecture, path in ((HERE, package), (other, package_of(dist, "edge", other))):
        folder = tmp_path / architecture
        subprocess.run(["dpkg-deb", "--raw-extract", path, folder], check=True)
        assert f"\nArchitecture: {architecture}\n" in (folder / "DEBIAN/control").read_text()
        there = [each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()]
        machine = MACHINES[architecture]
        files[architecture] = {str(each.relative_to(folder)).replace(machine, ""): each.read_bytes() for each in there}
    assert files[HERE].keys() == files[other].keys()
    for name, ours in files[HERE].items():
        assert machine_of(ours) is None or machine_of(ours) != machine_of(files[other][name]), name


def machine_of(content: bytes) -> bytes | None:
    """The number of the processor that a compiled file is for; None if it is no compiled file."""
    return content[18:20] if content.startswith(b"\x7fELF") else None


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_a_running_node_stops_before_its_files_change_and_runs_again(
    room: DebianRoot, package: Path, later: Path
) -> None:
    for path, text in (("usr/bin/systemctl", SYSTEMCTL), ("is-active", "")):
        (room.folder / path).write_text(text)
    (room.folder / "usr/bin/systemctl").chmod(0o755)
    (room.folder / "run/systemd/system").mkdir(parents=True)
    try:
        room.run("apt-get", "purge", "--yes", "weft-edge")
        install(room, package)
        assert not [each for each in orders(room) if "start" in each or "enable" in each]
        # An upgrade that cannot be unpacked: the files of the release before are there, and run again.
        broken = room.folder / "broken.deb"
        broken.write_bytes(later.read_bytes()[:-1000])
        assert room.run("dpkg", "--install", "/broken.deb").returncode != 0
        old = room.did("dpkg-query", "--show", "--showformat=${Version}", "weft-edge")
        assert orders(room)[-2:] == [f"{old} daemon-reload", f"{old} start weft-edge.service"]
        install(room, later)
        said = orders(room)
        new = old.replace("0", "99", 1)
        assert said.index(f"{old} stop weft-edge.service") < said.index(f"{new} start weft-edge.service")
        room.did("apt-get", "remove", "--yes", "weft-edge")
        assert f"{new} --quiet disable --now weft-edge.service" in orders(room)
    finally:
        (room.folder / "usr/bin/systemctl").unlink()
        (room.folder / "run/systemd/system").rmdir()


def orders(room: DebianRoot) -> list[str]:
    """What the scripts called systemctl with since the last look, behind the version of the package at that time."""
    noted = room.folder / "systemctl.said"
    text = noted.read_text() if noted.exists() else ""
    noted.write_text("")
    return text.splitlines()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_an_installation_by_hand_is_not_overlaid(bare: DebianRoot, package: Path) -> None:
    bare.run("apt-get", "purge", "--yes", "weft-edge")
    unit = bare.folder / "etc/systemd/system/weft-edge.service"
    unit.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "deploy/weft-edge.service", unit)
    shutil.copyfile(package, bare.folder / "weft-0.deb")
    done = bare.run("apt-get", "install", "--yes", "/weft-0.deb")
    assert done.returncode != 0
    assert "is of an installation by hand" in done.stdout + done.stderr
    unit.unlink()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_bare_debian_comes_to_a_row_by_the_page_and_a_hub_comes_and_goes(
    bare: DebianRoot, package: Path, hub_package: Path, tmp_path: Path
) -> None:
    bare.run("apt-get", "purge", "--yes", "weft-edge")
    shutil.rmtree(bare.folder / "etc/weft", ignore_errors=True)
    hub_port, mqtt_port = free_port(), free_port()
    page = PAGE.read_text().replace(":8090", f":{hub_port}").replace(":1883", f":{mqtt_port}")
    section = page.split("## From nothing to a row in a table")[1].split("```sh\n")[1].split("```")[0]
    store, began_s, code = bare.folder / "var/lib/weft-hub", time.monotonic(), ""
    with ExitStack() as services:
        for step in section.replace("\\\n", " ").splitlines():
            words = shlex.split(step.removeprefix("sudo "))
            if words[0] == "apt":
                install(bare, hub_package, package)
            elif words[0] == "systemctl":
                if words[-1] == "weft-edge":
                    with (bare.folder / CONFIG).open("a") as file:
                        file.write(f'http: {{bind: "127.0.0.1:{free_port()}"}}\n')
                services.enter_context(running(bare, words[-1]))
            elif words[0] == "mosquitto_pub":
                publish(mqtt_port, "plant/press/m1/telemetry", ['{"temperature": 21.5}'])
            elif "audit" in words:
                audit_finds(bare, 1)
            else:
                said = bare.did(*words[2:], user=words[1], answer=f"{code}\n")
                code = next(iter(CODE.findall(said)), code)
        # As a figure for the pages; a busy machine takes longer.
        print(f"from a bare Debian to a row: {time.monotonic() - began_s:.0f} s")
    unit_is_good(bare, "weft-hub.service", tmp_path)

    # The hub is replaced while the edge takes messages, which it keeps.
    with running(bare):
        publish(mqtt_port, "plant/press/m1/telemetry", ["while the hub changes"] * 10)
        install(bare, later_of(hub_package, tmp_path))
        with running(bare, "weft-hub"):
            audit_finds(bare, 11)

    # What pip puts into the system's Python is no part of the packages, which do not see it.
    python = os.path.basename(os.path.realpath("/usr/bin/python3"))
    other = bare.folder / f"usr/local/lib/{python}/dist-packages/weft/__init__.py"
    other.parent.mkdir(parents=True)
    other.write_text("raise SystemExit('another Weft')\n")
    for name in ("weft-edge", "weft-hub"):
        assert bare.did(f"/usr/lib/{name}/bin/weft", "--version").startswith("weft ")
        bare.did("dpkg", "--verify", name)

    # Where the hub's package is gone, the command is the edge's, and so is all that is left.
    assert bare.did("readlink", "--canonicalize", "/usr/bin/weft") == "/usr/lib/weft-hub/bin/weft\n"
    bare.did("apt-get", "remove", "--yes", "weft-hub")
    assert bare.did("readlink", "--canonicalize", "/usr/bin/weft") == "/usr/lib/weft-edge/bin/weft\n"
    assert list(store.iterdir()) != []
    assert "hub.yaml" in set(os.listdir(bare.folder / "etc/weft"))
    bare.did("apt-get", "purge", "--yes", "weft-hub")
    assert not store.exists()
    assert sorted(os.listdir(bare.folder / "etc/weft")) == ["edge.yaml", "press-shop-7.token", "token"]
    assert bare.run("cat", "/etc/weft/token", "/var/lib/weft/log-id", user="weft-hub").stdout == ""
    assert "while the hub changes" in kept(bare)
    bare.did("apt-get", "purge", "--yes", "weft-edge")
    assert not (bare.folder / "usr/bin/weft").is_symlink()
    assert not (bare.folder / "etc/weft").exists(), "no token is left"
    assert other.exists()


def test_debian_reads_the_changelog(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("dpkg-parsechangelog") is None:
        pytest.skip("dpkg-dev is not installed")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1796052669")
    command = ["dpkg-parsechangelog", "--file=-", "--all"]
    text = changelog("weft-edge", Version("1.2rc1"))
    read = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert (read.stderr, "Source: weft-edge\nVersion: 1.2~rc1\n" in read.stdout) == ("", True)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Packages with nothing but their scripts, folders and configurations."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed")
    folder, made = tmp_path_factory.mktemp("scripts"), []
    for package in PACKAGES:
        stage = folder / package.kind
        command = f"/{package.home}/bin/weft"
        put(stage / command[1:], "#!/bin/sh\n")
        put(stage / "etc/weft" / f"{package.kind}.yaml", "# an example\n")
        facts = {"version": "99", "architecture": HERE, "python": PYTHON}
        describe(package, stage, {COMMAND_PATH: command}, facts)
        made.append(folder / f"{package.name}.deb")
        stage.chmod(0o755)
        command_line = ["dpkg-deb", "-Zgzip", "--root-owner-group", "--build", str(stage), str(made[-1])]
        subprocess.run(command_line, check=True, capture_output=True)
    return made


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_an_upgrade_gives_each_node_what_was_of_one_user_and_a_purge_leaves_no_token(
    bare: DebianRoot, scripts: list[Path]
) -> None:
    bare.run("apt-get", "purge", "--yes", "weft-edge", "weft-hub")
    shutil.rmtree(bare.folder / "etc/weft", ignore_errors=True)
    # As 0.1.0 leaves it, with what an operator adds.
    files = {
        "edge.yaml": "listeners: {mqtt: {tls: {key: x}}}\nlinks: {cloud: {token_file: press-7.token, ca_file: ca.pem}}",
        "hub.yaml": "tls: {client_ca: ca.pem, key: tls/hub-key.pem}",
        "users": "",
        "press-7.token": "",
        "user.password": "",
        "hub.key": "",
        "ops.token": "",
        "ca.pem": "",
        "plant-ca/ca.key": "",
        "tls/hub-key.pem": "",
    }
    bare.did("adduser", "--system", "--group", "--quiet", "--no-create-home", "weft")
    bare.did("adduser", "--quiet", "--disabled-password", "--gecos", "", "anna")
    bare.did("adduser", "--quiet", "anna", "weft")
    places = {f"etc/weft/{name}": text for name, text in files.items()}
    for path, text in {**places, "var/lib/weft/log/1.seg": "", "var/lib/weft-hub/cluster.json": ""}.items():
        place = bare.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o600 if path in places else 0o640)
    bare.did("chown", "-R", "weft:weft", "/etc/weft", "/var/lib/weft", "/var/lib/weft-hub")
    bare.did("chmod", "750", "/etc/weft", "/var/lib/weft", "/var/lib/weft-hub")

    def reads(user: str) -> set[str]:
        found = bare.run("sh", "-c", "find /etc/weft/* /var/lib/weft /var/lib/weft-hub -type f -readable", user=user)
        known = [
            f"/etc/weft/{name}" for name in files if bare.run("cat", f"/etc/weft/{name}", user=user).returncode == 0
        ]
        names = {os.path.basename(path) for path in (*found.stdout.split(), *known)}
        return {name for name in names if not name.endswith(".dpkg-dist")}

    edge_s = {"edge.yaml", "users", "press-7.token", "user.password", "1.seg"}
    hub_s = {"hub.yaml", "hub.key", "hub-key.pem", "ops.token", "ca.key", "cluster.json"}
    for package in scripts:  # one after the other: meanwhile the hub is of 0.1.0, and runs as weft
        assert reads("weft") >= hub_s
        shutil.copyfile(package, bare.folder / package.name)
        bare.did("dpkg", "--install", "--force-confold", f"/{package.name}")
    assert reads("weft-edge") == edge_s | {"ca.pem"}
    assert reads("weft-hub") == hub_s | {"ca.pem"}
    examples = [f"/etc/weft/{kind}.yaml.dpkg-dist" for kind in ("edge", "hub")]
    assert bare.did("stat", "--format=%U", *examples).split() == ["weft-edge", "weft-hub"]
    assert reads("anna") == {"edge.yaml", "hub.yaml", "1.seg", "cluster.json"}, "what a reader of data could read"
    # Neither takes away or replaces what is the other's, and each adds files.
    assert bare.run("mv", "/etc/weft/users", "/etc/weft/own", user="weft-hub").returncode != 0
    bare.did("sh", "-c", "umask 077; echo secret >/etc/weft/any-name.token", user="weft-edge")
    assert "any-name.token" not in reads("weft-hub")

    bare.did("apt-get", "purge", "--yes", "weft-edge")
    left = set(os.listdir(bare.folder / "etc/weft")) - {"hub.yaml.dpkg-dist"}
    assert left == {"hub.yaml", "hub.key", "ops.token", "ca.pem", "plant-ca", "tls"}
    assert reads("weft-hub") == hub_s | {"ca.pem"}
    bare.did("apt-get", "purge", "--yes", "weft-hub")
    assert set(os.listdir(bare.folder / "etc/weft")) == {"ca.pem", "plant-ca", "tls"}, "folders stay"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(590)
def test_a_memory_card_s_commands_make_a_bare_debian_a_linked_edge(
    bare: DebianRoot, package: Path, tmp_path: Path
) -> None:
    bare.run("apt-get", "purge", "--yes", "weft-edge")
    shutil.rmtree(bare.folder / "etc/weft", ignore_errors=True)
    port, hub_yaml, boot = free_port(), tmp_path / "hub.yaml", bare.folder / "boot/firmware"
    weft("ca", "init", tmp_path / "ca")
    weft("hub", "init", hub_yaml, "--listen", f"127.0.0.1:{port}", "--ca", tmp_path / "ca", "--host", "127.0.0.1")
    hub_yaml.write_text(hub_yaml.read_text() + "processes: 1\nshards: 1\n")
    hub = Node("hub", hub_yaml)
    try:
        made = weft("hub", "token", "pair", hub_yaml, "press-shop-7", "--within", "1d", "--yes", "--json")
        boot.mkdir(parents=True)
        shutil.copyfile(package, boot / "weft-edge.deb")
        shutil.copyfile(tmp_path / "authority.crt", boot / "authority.crt")
        text = CARD.read_text().split("```text\n#cloud-config\n")[1].split("```")[0]
        for theirs, ours in {
            "https://hub.plant.example:8090": f"https://127.0.0.1:{port}",
            "0.0.0.0:1883": f"127.0.0.1:{free_port()}",
            CODE.findall(text)[0]: json.loads(made.stdout)["code"],
        }.items():
            text = text.replace(theirs, ours)
        *setting_up, enabling, doctor = yaml.safe_load(text)["runcmd"]
        for command in setting_up:
            bare.did("sh", "-c", command)
        assert enabling == "systemctl enable --now weft-edge"
        with (bare.folder / CONFIG).open("a") as file:
            file.write(f'http: {{bind: "127.0.0.1:{free_port()}"}}\n')
        said: list[str] = []

        def is_linked() -> bool:
            said.append(bare.run("sh", "-c", doctor).stdout)
            return "link cloud: the node is connected" in said[-1]

        with running(bare):
            wait_until(is_linked, PATIENCE_S, what=lambda: said[-1], interval_s=1)
        assert "and they fit" in said[-1]
        assert (bare.folder / "etc/weft/user.password").stat().st_mode & 0o777 == 0o600
    finally:
        hub.process.kill()
        hub.process.wait()
        bare.run("apt-get", "purge", "--yes", "weft-edge")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_systemd_runs_both_confined_and_an_upgrade_under_load_loses_nothing(
    package: Path, hub_package: Path, later: Path, tmp_path: Path
) -> None:
    (tmp_path / "later").mkdir()
    later_hub = later_of(hub_package, tmp_path / "later")
    hub_port, mqtt_port, http_port = free_port(), free_port(), free_port()
    units, hub, edge, token = ("weft-hub", "weft-edge"), "/etc/weft/hub.yaml", "/etc/weft/edge.yaml", "/etc/weft/token"
    with ExitStack() as until_the_end:
        try:
            room = until_the_end.enter_context(booted_debian(tmp_path))
        except LookupError as error:
            pytest.skip(str(error))

        def did(*command: str) -> str:
            return room.did(*command, user="weft-hub")

        install(room, hub_package, package)
        did("weft", "hub", "init", hub, "--listen", f"127.0.0.1:{hub_port}")
        did("sh", "-c", f"echo 'processes: 1' >>{hub}")
        room.did("systemctl", "enable", "--now", "weft-hub")
        did("weft", "hub", "token", "add", hub, "a", "--scope", "edge", "--edge", "a", "--to", f"{token}.a", "--yes")
        to_hub = ("--hub", f"http://127.0.0.1:{hub_port}", "--token-file", f"{token}.a")
        stream = f"{STREAM}=load/{{device}}/count"
        room.did("chown", "weft-edge:weft-edge", f"{token}.a")
        init = (
            "weft",
            "edge",
            "init",
            edge,
            "--node=a",
            f"--stream={stream}",
            f"--listen=127.0.0.1:{mqtt_port}",
            *to_hub,
        )
        room.did(*init, user="weft-edge")
        room.did("sh", "-c", f"echo 'http: {{bind: \"127.0.0.1:{http_port}\"}}' >>{edge}")
        room.did("systemctl", "enable", "--now", "weft-edge")

        def records() -> int:
            try:
                return int(get_json(f"http://127.0.0.1:{http_port}/status")["streams"][STREAM]["durable_end"])
            except OSError:
                return 0

        def further(count: int = 0) -> int:
            wait_until(lambda: records() > count, PATIENCE_S, what=lambda: journal(room))
            return records()

        load = Load(mqtt_port, options=["--rate", "100"])
        until_the_end.callback(load.kill)
        before = further()
        for unit in units:
            is_confined(room, unit)
        room.did("systemctl", "kill", "--signal=KILL", "weft-edge")
        before = further(before)
        processes = [main_process(room, unit) for unit in units]
        install(room, later, later_hub)
        further(before)
        assert all(new != old for new, old in zip((main_process(room, unit) for unit in units), processes, strict=True))
        acked = load.finish()
        audit_finds(room, records(), STREAM)
        room.did("systemctl", "stop", *units)
        counted = check_every_message(open_store(str(room.folder / "var/lib/weft-hub")), acked)
        assert counted["messages"] > 100
        print(dict(counted))
        said = journal(room)
        assert not [line for line in said.splitlines() if "Traceback" in line or "not permitted" in line], said
        room.did("apt-get", "remove", "--yes", *units)
        assert room.run("systemctl", "is-enabled", *units).returncode != 0
        assert list((room.folder / "var/lib/weft").iterdir()) != []


def main_process(room: DebianRoot, unit: str) -> str:
    """The process of a unit that runs."""
    room.did("systemctl", "is-active", unit)
    return room.did("systemctl", "show", "--value", "--property=MainPID", unit).strip()


def is_confined(room: DebianRoot, unit: str) -> None:
    """The process has another user, no rights, and a filter of system calls; systemd counts the rest."""
    status = room.did("cat", f"/proc/{main_process(room, unit)}/status")
    facts = {name: value.split() for name, _, value in (line.partition(":") for line in status.splitlines())}
    user = room.did("id", "--user", unit).strip()
    assert (facts["Uid"], facts["NoNewPrivs"], facts["Seccomp"]) == ([user] * 4, ["1"], ["2"])
    assert {int(facts[name][0], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {0}
    room.did("systemd-analyze", "security", f"--threshold={EXPOSURE_MAX}", f"{unit}.service")


def journal(room: DebianRoot) -> str:
    return room.did("journalctl", "--no-pager", "--unit=weft-edge", "--unit=weft-hub")


def audit_finds(room: DebianRoot, records: int, stream: str = "telemetry") -> None:
    """Wait until each record is in the log and in the table, once."""
    command = ("weft", "audit", stream, "--store", "/var/lib/weft-hub")
    said: list[str] = []

    def is_found() -> bool:
        done = room.run(*command, user="weft-hub")
        said.append(done.stdout + done.stderr)
        return done.returncode == 0 and f"{records} of them" in done.stdout

    wait_until(is_found, PATIENCE_S, what=lambda: said[-1], interval_s=1)


def test_a_version_before_a_release_sorts_before_it() -> None:
    texts = ["1.2.dev3", "1.2a1", "1.2rc1.dev3", "1.2rc1", "1.2", "1.2+plant.2", "1.2.post1", "1.3"]
    versions = [debian_version(Version(text)) for text in texts]
    if shutil.which("dpkg") is None:
        pytest.skip("dpkg is not installed")
    pairs = [f"dpkg --compare-versions '{low}' lt '{high}'" for low, high in itertools.pairwise(versions)]
    done = subprocess.run(["sh", "-xc", " && ".join(pairs)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
