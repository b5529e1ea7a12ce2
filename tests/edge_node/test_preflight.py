"""What a check finds on the machine. What it says of it is pinned by the table of mistakes (tests/weft/mistakes)."""

from __future__ import annotations

import os
import socket
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from weft.config.errors import Finding
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node import preflight
from weft.edge_node.check.rules import check

DEFAULT_BUDGET = 16 << 30
CONFIG = "node: a\ndata_dir: {data_dir}\nstreams: {{telemetry: {{from: '#'}}}}\nhttp: null\n"


def loaded(data_dir: object, more: str = "") -> tuple[EdgeConfig, preflight.EdgeFindings]:
    found = parse(CONFIG.format(data_dir=data_dir) + more, "edge.yaml", EdgeConfig, check)
    return found.config, preflight.look(found.config, found.lines, datetime.now(UTC))


def paths(findings: list[Finding]) -> list[str]:
    return [".".join(map(str, finding.path)) for finding in findings]


def writable_disk_below(size: int) -> str | None:
    """A folder on a file system in memory; most machines have one for locks or for each user."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, folder, kind, *_ = line.split()
        if kind == "tmpfs" and not folder.startswith("/sys") and os.access(folder, os.W_OK | os.X_OK):
            disk = os.statvfs(folder)
            if 1 << 20 <= disk.f_blocks * disk.f_frsize < size:
                return folder
    return None


def test_a_good_configuration_has_nothing_wrong_and_nothing_is_made(tmp_path: Path) -> None:
    config, found = loaded(tmp_path / "data", "disk: {budget: 16MiB}\nlisteners: {mqtt: {bind: '127.0.0.1:0'}}\n")
    assert found == preflight.EdgeFindings()
    assert preflight.ports(config) == ([], [])
    assert not (tmp_path / "data").exists()


def test_a_budget_that_was_written_must_fit_the_disk_and_a_default_is_only_doubtful() -> None:
    small_disk = writable_disk_below(DEFAULT_BUDGET)
    if small_disk is None:
        pytest.skip("no disk of this machine is smaller than the default of disk.budget")
    with tempfile.TemporaryDirectory(dir=small_disk) as folder:
        _, by_default = loaded(folder)
        assert (paths(by_default.unfit), paths(by_default.doubtful)) == ([], ["disk.budget"])
        _, written = loaded(folder, "disk: {budget: 16GiB}\n")
        assert (paths(written.unfit), paths(written.doubtful)) == (["disk.budget"], [])


def test_what_the_log_holds_already_counts_as_room(tmp_path: Path) -> None:
    """A node whose log has filled its budget is not told that the budget does not fit."""
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    with open(tmp_path / "0.seg", "wb") as file:
        file.truncate(1 << 40)  # sparse: takes no room, and stands for a terabyte of log
    _, found = loaded(tmp_path, f"disk: {{budget: {min(free + (1 << 30), disk.f_blocks * disk.f_frsize)}B}}\n")
    assert "disk.budget" not in paths(found.doubtful + found.unfit)


def test_a_port_is_free_again_after_it_was_tried(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config, _ = loaded(tmp_path, f"listeners: {{plant: {{bind: '127.0.0.1:{port}'}}}}\n")
        errors, untried = preflight.ports(config)
        assert (paths(errors), untried) == (["listeners.plant.bind"], [])
    assert preflight.ports(config) == ([], [])
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_missing_extra_for_traces_lets_the_node_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.network.tracing.is_installed", lambda: False)
    _, found = loaded(tmp_path, "tracing: {endpoint: 'http://127.0.0.1:4318'}\n")
    assert ([*found.needed], paths(found.unfit)) == ([], ["tracing"])
    assert "pip install 'weft-fabric[otel]'" in str(found.unfit[0])
    assert paths(loaded(tmp_path)[1].unfit) == []


def test_a_links_certificate_names_the_edge(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for name in ("a", "acme/a", "hub"):
        authority.sign(name, name.replace("/", "-"))

    def said(name: str, more: str = "", tenant: str = "default") -> tuple[list[str], list[str]]:
        files = f"ca_file: {authority.path}, certificate: {tmp_path / name}.crt, key: {tmp_path / name}.key"
        link = f"tenant: {tenant}\nlinks: {{cloud: {{to: 'https://hub.test', {files}{more}}}}}\n"
        _, found = loaded(tmp_path / "data", f"disk: {{budget: 16MiB}}\n{link}")
        return paths(found.unfit), paths([each for each in found.doubtful if "this edge is" in each.message])

    assert said("a") == ([], [])
    assert said("acme-a", tenant="acme") == ([], [])
    assert said("a", tenant="acme") == (["links.cloud.certificate"], [])
    assert said("hub") == (["links.cloud.certificate"], [])
    (tmp_path / "token").write_text("weft_secret")
    (tmp_path / "token").chmod(0o600)
    assert said("hub", f", token_file: {tmp_path / 'token'}") == ([], ["links.cloud.certificate"]), "the token decides"


def test_a_hub_at_port_80_is_doubted_unless_it_was_written(tmp_path: Path) -> None:
    for url, said in (("http://127.0.0.1", ["links.cloud.to"]), ("http://127.0.0.1:80", []), ("https://localhost", [])):
        _, found = loaded(tmp_path / "data", f"disk: {{budget: 16MiB}}\nlinks: {{cloud: {{to: '{url}'}}}}\n")
        assert paths(found.doubtful) == said


def test_a_link_with_a_certificate_needs_no_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.sign("a")
    files = f"ca_file: {authority.path}, certificate: {own.certificate}, key: {own.key}"
    _, found = loaded(tmp_path / "data", f"links: {{cloud: {{to: 'https://hub.test', {files}}}}}\n")
    assert "links.cloud.token_file" not in paths(found.doubtful)
