"""A check before the start names the files of functions that cannot be used, and why."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node import preflight

CONFIG = """\
node: a
data_dir: {folder}/data
http: null
disk: {{budget: 16MiB}}
streams:
  telemetry:
    from: "plant/#"
    functions:
      - {function}
"""


def findings(folder: Path, function: str) -> list[str]:
    config = parse(CONFIG.format(folder=folder, function=function), str(folder / "edge.yaml"), EdgeConfig).config
    unfit = preflight.look(config, {}, datetime.now(UTC)).unfit
    return [f"{'.'.join(map(str, each.path))}: {each.message}" for each in unfit]


@pytest.mark.parametrize(
    ("function", "found"),
    [
        ("enrich: {file: good.csv, on: machine}", []),
        ("python: good.py", []),
        (
            "enrich: {file: none.csv, on: machine}",
            ["enrich.file: FOLDER/none.csv: there is no such file. The functions of telemetry wait for it"],
        ),
        (
            "enrich: {file: good.csv, on: site}",
            ["enrich.file: good.csv: has no column site. There are: machine. The functions of telemetry wait for it"],
        ),
        (
            "python: none.py",
            ["python.file: FOLDER/none.py: there is no such file. The functions of telemetry wait for it"],
        ),
        (
            "python: bad.py",
            [
                "python.file: FOLDER/bad.py, line 2: is not Python: '(' was never closed. The "
                "functions of telemetry wait for it"
            ],
        ),
        (
            "python: {file: good.py, files: [none.onnx]}",
            ["python.files: FOLDER/none.onnx: there is no such file. The functions of telemetry wait for it"],
        ),
    ],
)
def test_files_that_cannot_be_used_are_found(tmp_path: Path, function: str, found: list[str]) -> None:
    (tmp_path / "good.csv").write_text("machine\nm1\n")
    (tmp_path / "good.py").write_text(
        "raise SystemExit('a check runs no code')\n\n\ndef process(record, ctx):\n    return record\n"
    )
    (tmp_path / "bad.py").write_text("def process(record, ctx):\n    return (\n")
    assert findings(tmp_path, function) == [
        f"streams.telemetry.functions.0.{each}".replace("FOLDER", str(tmp_path)) for each in found
    ]
