"""One `weft` command in a process of its own, forked from a server that has imported everything: 30 ms, not 500."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

import weft.commands
import weft.config
import weft.edge_node
import weft.replication
import weft.storage
from weft.cli import main

NOBODY = 65_534
"""User that commands run as where the tests run as root, who may read every file and bind every port."""

BUCKET = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "here", "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
}  # fmt: skip
"""Where buckets are looked for: at a port that nothing listens at."""


def import_everything() -> None:
    """Import what commands import when they are called: a user without rights may not be able to read it later."""
    for package in (weft.config, weft.edge_node, weft.replication, weft.storage, weft.commands):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ModuleNotFoundError):  # of an extra, without which commands do not come to it
                importlib.import_module(module.name)
    for name in (
        "weft.cloud_hub.hub",
        "weft.cloud_hub.preflight",
        "weft.storage.audit.audit",
        "weft.cloud_hub.tables.service",
    ):
        importlib.import_module(name)
    for name in ("encodings.ascii", "encodings.idna", "encodings.latin_1", "encodings.punycode", "stringprep"):
        importlib.import_module(name)


def run(arguments: Sequence[str], folder: Path, given: str) -> None:
    """Be the command: files beside ``folder`` take what it prints. Not to be called but in a new process."""
    os.setsid()  # without a terminal that it could ask at
    reading, writing = os.pipe()
    os.write(writing, given.encode())
    os.close(writing)
    os.dup2(reading, 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{folder}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdin = open(0, closefd=False)
    os.environ.pop("WEFT_TRACEBACK", None)
    os.environ.update(BUCKET)
    os.chdir(folder)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    main(list(arguments))


import_everything()
