"""A node whose disk became read-only names the disk in its last line."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from weft.cli import cli
from weft.edge_node.node import EdgeNode
from weft.service.serving import read_only_mount
from weft.storage.segment_log import LogFailed

CONFIG = (
    "node: pi\ndata_dir: {}\nstreams: {{t: {{from: 't/#', replicate: false}}}}\nlisteners: {{mqtt: null}}\nhttp: null\n"
)


def become_read_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY, f_bavail=1 << 30, f_frsize=4096))


def test_only_a_disk_that_is_read_only_now_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_only_mount(str(tmp_path)) is None
    assert read_only_mount(str(tmp_path / "gone")) is None
    become_read_only(monkeypatch)
    mount = read_only_mount(str(tmp_path))
    assert mount is not None
    assert os.path.ismount(mount)
    assert str(tmp_path.resolve()).startswith(mount)


@pytest.mark.parametrize("is_read_only", [True, False])
def test_the_last_line_names_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read_only: bool) -> None:
    config = tmp_path / "edge.yaml"
    config.write_text(CONFIG.format(tmp_path / "data"))

    async def run(node: EdgeNode, _stop: object) -> None:
        if is_read_only:
            become_read_only(monkeypatch)
        raise LogFailed("the log failed") from OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(EdgeNode, "run", run)
    done = CliRunner().invoke(cli, ["edge", "run", str(config)])
    assert done.exit_code == 1
    last = done.output.strip().splitlines()[-1] if done.output.strip() else ""
    if is_read_only:
        mount = read_only_mount(str(tmp_path))
        assert f"the disk mounted at {mount} became read-only" in last
        assert "the log failed" in last
        assert "mount it read-write, and start the node again" in last
    else:
        assert "read-only" not in last
