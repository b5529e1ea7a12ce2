"""What `pip install` gives of the wheel, the source distribution and a checkout: an edge node, and nothing heavy.

`./run build` runs this on what it has built (``WEFT_DISTRIBUTIONS`` is the folder); otherwise both are built here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.processes import STOP_S_MAX, Node, publish

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
HEAVY = {"pyarrow", "numpy", "pandas", "deltalake", "obstore", "pyspark"}
NAMES = {"weft", "spark_sinks", "pyspark_weft"}
"""What may be imported once Weft is installed; the other packages are within `weft`."""
PATTERNS = {"wheel": "*.whl", "source": "*.tar.gz"}
OF_THE_CHECKOUT = {"tests", "bench", "examples"}
"""Packages that are not shipped."""
COPIED_NOT = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "__pycache__")
"""What a fresh clone does not have. All is done in copies: building writes next to the sources."""
LOCAL = 'listeners: {mqtt: {bind: "127.0.0.1:0"}}\nhttp: {bind: "127.0.0.1:0"}\ndisk: {budget: 64MiB, segment: 4MiB}\n'


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source distribution."""
    if built := os.environ.get("WEFT_DISTRIBUTIONS"):
        return Path(built).resolve()
    folder = tmp_path_factory.mktemp("distributions")
    shutil.copytree(ROOT, folder / "source", ignore=COPIED_NOT)
    command = [sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(folder / "source")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "dist"


@pytest.fixture(scope="module", params=[*PATTERNS, "checkout"])
def binaries(distributions: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The `bin` folder of a fresh environment into which only Weft and what it requires was installed."""
    home = tmp_path_factory.mktemp(request.param)
    if request.param == "checkout":
        return installed_as_on_the_page(home)
    (distribution,) = distributions.glob(PATTERNS[request.param])
    subprocess.run([sys.executable, "-m", "venv", home / "weft-env"], check=True)
    pip(home / "weft-env/bin", "install", "--constraint", str(ROOT / "constraints.txt"), str(distribution))
    return home / "weft-env/bin"


def installed_as_on_the_page(home: Path) -> Path:
    """Run the commands of the page on installation in a copy of the checkout."""
    section = (ROOT / "docs/how-to/install.md").read_text().split("## From the repository")[1]
    commands = section.split("```sh\n")[1].split("```")[0]
    shutil.copytree(ROOT, home / "checkout", ignore=COPIED_NOT)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"HOME": str(home), "PATH": path}
    done = subprocess.run(
        ["sh", "-ec", commands], cwd=home / "checkout", env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return home / "weft-env/bin"


def pip(binaries: Path, *arguments: str) -> str:
    """What pip of that environment says."""
    command = [str(binaries / "pip"), "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(binaries: Path) -> Path:
    """The folder that the packages are in."""
    (folder,) = binaries.parent.glob("lib/python3*/site-packages")
    return folder


@pytest.fixture
def config(installed: Path, tmp_path: Path) -> Path:
    """The least example, with ports that are free."""
    path = tmp_path / "edge.yaml"
    path.write_text((installed / "weft/config/examples/edge-minimal.yaml").read_text() + LOCAL)
    return path


def test_it_says_its_version_and_nothing_heavy_is_installed(binaries: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    said = subprocess.run([binaries / "weft", "--version"], check=True, capture_output=True, text=True).stdout
    assert said == f"weft {version}\n"
    listed = json.loads(pip(binaries, "list", "--format", "json"))
    names = {each["name"].lower() for each in listed}
    assert "weft-fabric" in names
    assert not names & HEAVY


def test_data_and_examples_are_installed_and_no_tests(installed: Path) -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - OF_THE_CHECKOUT
    data = {
        str((Path() if package in NAMES else Path("weft")) / path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert {"weft/py.typed", "weft/config/examples/edge-full.yaml", "weft/network/pages/static/uplot.min.js"} <= data
    assert sorted(name for name in data if not (installed / name).is_file()) == []
    assert [name for name in packages - NAMES | OF_THE_CHECKOUT if (installed / name).exists()] == []


def test_an_edge_node_takes_the_example_and_messages_and_keeps_them(binaries: Path, config: Path) -> None:
    checked = subprocess.run([binaries / "weft", "edge", "check", config], check=True, capture_output=True, text=True)
    assert f"{config} is good: node press-shop-7, 1 stream" in checked.stdout
    for end in (100, 200):
        node = Node("edge", config, [str(binaries / "weft")])
        try:
            publish(node.mqtt_port, "plant/a/b/telemetry", [f"message {i}" for i in range(100)])
            assert node.json("status")["streams"]["telemetry"]["durable_end"] == end
            assert "weft_edge_acks_sent_total 100.0" in node.text("metrics")
            node.kill()
        finally:
            node.process.kill()
            node.process.wait(STOP_S_MAX)
    dumped = subprocess.run(
        [binaries / "weft", "log", "dump", config.parent / "data"], check=True, capture_output=True, text=True
    )
    assert "first=100 end=" in dumped.stdout


@pytest.mark.parametrize("binaries", ["wheel"], indirect=True)
def test_where_it_is_installed_its_name_is_enough_to_add_an_extra(binaries: Path) -> None:
    arguments = ("--dry-run", "--constraint", str(ROOT / "constraints.txt"), "weft-fabric[hub]")
    planned = pip(binaries, "install", *arguments).splitlines()[-1]
    assert planned.startswith("Would install ")
    assert all(name in planned for name in ("deltalake", "numpy", "obstore", "pyarrow"))
    assert "weft" not in planned


@pytest.mark.parametrize(
    "command",
    [
        ("hub", "run", "hub.yaml"),
        ("audit", "telemetry", "--store", "store"),
        ("audit", "telemetry", "--store", "s3://bucket"),
    ],
)
def test_what_needs_more_says_what_to_install(binaries: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "hub.yaml").write_text("store: store\n")
    (tmp_path / "store").mkdir()
    done = subprocess.run([binaries / "weft", *command], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert 'pip install "weft-fabric[hub]"' in done.stderr
    assert "Traceback" not in done.stderr
