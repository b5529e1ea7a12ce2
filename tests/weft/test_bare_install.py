"""What `pip install` without extras gives: an edge node, and none of the libraries that small machines do without."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.weft.processes import STOP_S_MAX, Node, publish

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
HEAVY = {"pyarrow", "numpy", "pandas", "deltalake", "obstore", "pyspark"}
CONFIG = """\
node: press-shop-7
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
http: {bind: "127.0.0.1:0"}
disk: {budget: 64MiB, segment: 4MiB}
streams: {telemetry: {from: "plant/{line}/telemetry"}}
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a fresh environment into which only the distribution and what it requires was installed."""
    folder = tmp_path_factory.mktemp("bare")
    # A copy: building writes next to the sources.
    ignored = shutil.ignore_patterns(".*", "*.egg-info", "build", "__pycache__")
    shutil.copytree(ROOT, folder / "source", ignore=ignored)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    binaries = folder / "venv" / "bin"
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([binaries / "pip", "install", "--quiet", *constraints, str(folder / "source")], check=True)
    return binaries


def test_nothing_heavy_is_installed(bare: Path) -> None:
    listed = subprocess.run([bare / "pip", "list", "--format", "json"], check=True, capture_output=True, text=True)
    installed = {each["name"].lower() for each in json.loads(listed.stdout)}
    assert "weft-fabric" in installed
    assert not installed & HEAVY


def test_an_edge_node_runs_takes_messages_and_keeps_them(bare: Path, tmp_path: Path) -> None:
    config = tmp_path / "edge.yaml"
    config.write_text(CONFIG)
    for end in (100, 200):
        node = Node("edge", config, [str(bare / "weft")])
        try:
            publish(node.mqtt_port, "plant/a/telemetry", [f"message {i}" for i in range(100)])
            assert node.json("status")["streams"]["telemetry"]["durable_end"] == end
            assert "weft_edge_acks_sent_total 100.0" in node.text("metrics")
            node.kill()
        finally:
            node.process.kill()
            node.process.wait(STOP_S_MAX)
    dumped = subprocess.run(
        [bare / "weft", "log", "dump", tmp_path / "data"], check=True, capture_output=True, text=True
    )
    assert "first=100 end=" in dumped.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("hub", "run", "hub.yaml"),
        ("audit", "telemetry", "--store", "store"),
        ("audit", "telemetry", "--store", "s3://bucket"),
    ],
)
def test_what_needs_more_says_what_to_install(bare: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "hub.yaml").write_text("store: store\n")
    done = subprocess.run([bare / "weft", *command], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert 'in the repository, pip install ".[hub]" (docs/how-to/install.md)' in done.stderr
    assert "Traceback" not in done.stderr
