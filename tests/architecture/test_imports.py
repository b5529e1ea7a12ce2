"""The import table of the architecture: who may know whom, which library may be used where, who may touch the disk."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.house import ALLOWED, ROOT, nodes, place, sources

THIRD_PARTIES: dict[str, tuple[str, ...]] = {
    "obstore": ("storage/object_store/",),
    "deltalake": (
        "storage/table/delta.py",
        "storage/table_writer/",
        "proofs/audit/",
        "proofs/trace.py",
        "spark_sinks/",
    ),
    "pyiceberg": ("storage/table/manifests.py", "cloud_hub/tables/iceberg.py"),
    "kio": ("cloud_hub/kafka/",),
    "aiokafka": ("cloud_hub/kafka/partitions.py",),
    "duckdb": ("cloud_hub/reads/sql.py",),
    "psycopg": ("spark_sinks/sinks/jdbc.py",),
    "pyspark": ("spark_sinks/", "pyspark_weft/", "weft/commands/"),
    "aiohttp": (
        "edge_node/",
        "cloud_hub/",
        "replication/runner",
        "network/http_server",
        "network/pages/",
        "weft/client/aio",
    ),
    "websockets": (
        "edge_node/servers/listeners/",
        "edge_node/servers/http/websocket.py",
        "spark_sinks/sinks/stream/link.py",
    ),
    "httptools": ("edge_node/servers/http/request.py",),
    "aio_pika": ("edge_node/sources/amqp",),
    "asyncua": ("edge_node/sources/opcua", "weft/commands/edge_source.py"),
    "pymodbus": ("edge_node/sources/modbus",),
    "aiormq": ("edge_node/sources/amqp",),
    "amqtt": ("weft/amqtt_plugin.py",),
    "click": ("weft/",),
    "rich": ("weft/",),
    "yaml": ("config/", "cloud_hub/auth/tokens.py"),
    "cryptography": (
        "storage/segment_log/cipher.py",
        "config/signing.py",
        "cloud_hub/",
        "edge_node/sources/opcua_client.py",
        "weft/commands/ca.py",
    ),
    "opentelemetry": ("network/tracing.py",),
    "joserfc": ("cloud_hub/auth/jwt.py",),
    "ctypes": ("storage/host.py", "functions/python_worker.py", "weft/service/serving.py"),
}
"""Library -> where it may be imported."""

LIGHT = (
    "protocols/",
    "config/",
    "replication/",
    "network/",
    "functions/",
    "edge_node/",
    "storage/segment_log/",
    "storage/filesystem.py",
    "storage/histogram.py",
    *(
        f"storage/payloads/{name}.py"
        for name in ("avro", "check", "exact", "fits", "formats", "misfits", "protobuf", "tree", "typed")
    ),
)
HEAVY = {"pyarrow", "numpy", "pandas", "deltalake", "obstore", "pyspark", "py4j"}

INPUT_AND_OUTPUT = {
    "asyncio",
    "fcntl",
    "http",
    "io",
    "os",
    "pathlib",
    "random",
    "secrets",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "socketserver",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uvloop",
    "datetime",
    "logging",
}
"""What a package of pure functions and state machines has no use for."""

FILE_CALLS = {
    "fdopen",
    "fsync",
    "fdatasync",
    "link",
    "mkdir",
    "makedirs",
    "open",
    "pread",
    "pwrite",
    "read",
    "remove",
    "rename",
    "renames",
    "replace",
    "rmdir",
    "scandir",
    "listdir",
    "stat",
    "statvfs",
    "truncate",
    "unlink",
    "write",
}


class Import(NamedTuple):
    module: str
    line: int

    @property
    def top(self) -> str:
        """The library, or the package of ours: folders at the top of the repository are imported as ``weft.NAME``."""
        first, _, rest = self.module.partition(".")
        second = rest.partition(".")[0]
        return second if first == "weft" and second in ALLOWED else first


@functools.cache
def imports(path: Path) -> tuple[Import, ...]:
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            yield from (Import(f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_know_only_whom_they_may(package: str) -> None:
    found = [
        f"{place(path)}:{each.line}: {package} may not import {each.top}"
        for path in sources(package)
        for each in imports(path)
        if each.top in ALLOWED and each.top != package and each.top not in ALLOWED[package]
    ]
    assert found == []


def test_every_package_is_in_the_table() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "bench", "examples"}
    assert packages == set(ALLOWED)


def test_no_name_is_taken_that_others_may_have() -> None:
    """Only ``weft``, ``spark_sinks`` and ``pyspark_weft`` are installed; the rest is imported as ``weft.NAME``."""
    hidden = set(ALLOWED) - {"weft", "spark_sinks", "pyspark_weft"}
    found = [
        f"{place(path)}:{each.line}: import weft.{each.module}"
        for path in sources(*ALLOWED, "tests", "bench", "docs", "examples")
        for each in imports(path)
        if each.module.partition(".")[0] in hidden
    ]
    assert found == []
    links = {path.name: path.readlink().as_posix() for path in (ROOT / "weft").iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in hidden}


@pytest.mark.parametrize("library", THIRD_PARTIES)
def test_libraries_are_used_only_in_their_places(library: str) -> None:
    found = [
        f"{place(path)}:{each.line}: {library} belongs in {', '.join(THIRD_PARTIES[library])}"
        for path in sources(*ALLOWED)
        for each in imports(path)
        if each.top == library and not place(path).startswith(THIRD_PARTIES[library])
    ]
    assert found == []


def test_what_an_edge_runs_imports_nothing_heavy() -> None:
    found = [
        f"{place(path)}:{each.line}: {each.module}"
        for path in sources(*ALLOWED)
        for each in imports(path)
        if place(path).startswith(LIGHT) and each.top in HEAVY
    ]
    assert found == []


def test_protocols_have_no_input_output_clock_or_randomness() -> None:
    found = [
        f"{place(path)}:{each.line}: {each.module}"
        for path in sources("protocols")
        for each in imports(path)
        if each.top in INPUT_AND_OUTPUT
    ]
    assert found == []


DOORS = (
    "storage/filesystem.py",
    "storage/filesystem.py",
    "storage/native_threads.py",
    "storage/host.py",
    "storage/host.py",
)
"""The second is for administrators' files, whose owners and modes the tests' fake disk does not have; the third reads
only what the kernel says of its own process; the last two measure a real disk, in a file without a name, and read what
the kernel says of it."""


def test_the_file_system_has_one_door() -> None:
    found = [
        f"{place(path)}:{node.lineno}: {ast.unparse(node.func)}"
        for path in sources("storage")
        if place(path) not in DOORS
        for node in nodes(path)
        if isinstance(node, ast.Call) and is_file_call(node.func)
    ]
    assert found == []


def is_file_call(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "open"
    is_of_os = (
        isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "os"
    )
    return is_of_os and isinstance(function, ast.Attribute) and function.attr in FILE_CALLS
