"""Where a mistake is made: a folder of its own, a port that is taken, and the commands that are run there."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tests.support.waiting import wait_until
from tests.weft.mistakes import child

RUN_S_MAX = 30.0
_TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}\S* ", re.MULTILINE)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
_PROBE = re.compile(r"probe/[0-9a-f]{16}")
"""Where a hub tries its store: a fresh name each time."""


@dataclass(frozen=True)
class Said:
    """What a command did."""

    exit_status: int
    stdout: str
    stderr: str


class Place:
    """One folder for each mistake, in one for all, that belongs to the user who makes them."""

    def __init__(self, root: Path, busy_port: int) -> None:
        self._root = root
        self._count = 0
        self._names: dict[str, str] = {"<busy>": str(busy_port)}
        self._server: ForkServerContext = multiprocessing.get_context("forkserver")
        self._server.set_forkserver_preload([child.__name__])

    def name(self, placeholder: str, value: object) -> None:
        """Let ``<...>`` in files, commands and messages stand for a value of this run."""
        self._names[placeholder] = str(value)

    def folder(self, files: Mapping[str, str | bytes]) -> Path:
        """Make a folder with files; a name that ends with a slash is a folder, ``name@0600`` has a mode."""
        self._count += 1
        folder = self._root / f"m{self._count}"
        folder.mkdir()
        for each, content in files.items():
            name, _, mode = each.partition("@")
            path = folder / name
            path.parent.mkdir(exist_ok=True, parents=True)
            if name.endswith("/"):
                path.mkdir(exist_ok=True)
            elif isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(self.filled(content, folder))
            path.chmod(int(mode, 8) if mode else 0o755 if path.is_dir() else 0o640)
        self.give_away(folder)
        return folder

    def give_away(self, folder: Path) -> None:
        """Make a folder and all in it the user's who makes the mistakes."""
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, child.NOBODY, child.NOBODY, follow_symlinks=False)

    def filled(self, text: str, folder: Path) -> str:
        """A text of the table with the values of this run."""
        for placeholder, value in {**self._names, "<dir>": str(folder)}.items():
            text = text.replace(placeholder, value)
        return text

    def emptied(self, text: str, folder: Path) -> str:
        """What a command printed, as it stands in the table."""
        for placeholder, value in {"<dir>": str(folder), **self._names}.items():
            # The user who runs the tests may be called as a topic is.
            before = "(?:(?<=user )|(?<=-o ))" if placeholder == "<user>" else ""
            if value:
                # As a template of re.sub a backslash would have a meaning.
                template = placeholder.replace("\\", r"\\")
                text = re.sub(rf"{before}(?<![\w-]){re.escape(value)}(?![\w-])", template, text)
        return _PROBE.sub("probe/<key>", _MOMENT.sub("<time>", _TIME.sub("", text))).strip()

    def start(self, arguments: list[str], folder: Path, given: str = "") -> multiprocessing.process.BaseProcess:
        """Start a command in a folder, with ``given`` as its standard input."""
        process = self._server.Process(target=child.run, args=(arguments, folder, given))
        process.start()
        return process

    @contextmanager
    def serving(self, kind: str, folder: Path) -> Iterator[None]:
        """Run the ``edge`` or ``hub`` of a folder's configuration for as long as the context lasts."""
        printed = Path(f"{folder}.stdout")
        process = self.start([kind, "run", f"{kind}.yaml"], folder)
        try:
            wait_until(lambda: process.exitcode is not None or (printed.exists() and "ready" in printed.read_text()))
            assert process.exitcode is None, Path(f"{folder}.stderr").read_text()
            yield
        finally:
            process.terminate()
            process.join(RUN_S_MAX)

    def run(self, arguments: list[str], folder: Path, given: str = "") -> Said:
        """Run a command to its end."""
        process = self.start(arguments, folder, given)
        process.join(RUN_S_MAX)
        if process.exitcode is None:
            process.kill()
            process.join()
        stdout, stderr = (self.emptied(Path(f"{folder}.{name}").read_text(), folder) for name in ("stdout", "stderr"))
        assert process.exitcode is not None
        return Said(process.exitcode, stdout, stderr)


@contextmanager
def made() -> Iterator[Place]:
    """A place that leaves nothing behind."""
    root = Path(tempfile.mkdtemp(prefix="weft-mistakes-"))
    root.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        try:
            yield Place(root, taken.getsockname()[1])
        finally:
            for folder, names, _ in os.walk(root):
                for name in names:  # rows about rights have closed some even to their owner
                    os.chmod(os.path.join(folder, name), 0o700)
            shutil.rmtree(root)
            end_server()


def end_server() -> None:
    """End the server that processes are forked from, and remove the folder of its socket.

    Python would do so when the tests' own process exits, after the check that they have left nothing behind. Its own
    tests end the server in this way too.
    """
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]
