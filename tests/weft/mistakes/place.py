"""Where a mistake is made: a folder of its own, a port that is taken, and the commands that are run there."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import forked
from tests.support.waiting import wait_until

RUN_S_MAX = 30.0
NOBODY = 65_534
"""User that commands run as where the tests run as root, who may read every file and bind every port."""
BUCKET = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_REGION": "here",
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
}
"""Where buckets are looked for: at a port that nothing listens at."""
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
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

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

    def start(self, arguments: list[str], folder: Path, given: str = "") -> subprocess.Popen[Any]:
        """Start a command in a folder, with ``given`` as its standard input; files beside the folder take its output.

        It has no terminal that it could ask at.
        """
        variables = {name: value for name, value in os.environ.items() if name != "WEFT_TRACEBACK"} | BUCKET
        user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        with open(f"{folder}.stdout", "wb") as out, open(f"{folder}.stderr", "wb") as errors:
            process: subprocess.Popen[Any] = forked.Popen(
                [sys.executable, "-m", "weft", *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                cwd=folder,
                env=variables,
                start_new_session=True,
                **user,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:  # it did not want it
            process.stdin.write(given.encode())
        return process

    @contextmanager
    def serving(self, kind: str, folder: Path) -> Iterator[None]:
        """Run the ``edge`` or ``hub`` of a folder's configuration for as long as the context lasts."""
        printed = Path(f"{folder}.stdout")
        process = self.start([kind, "run", f"{kind}.yaml"], folder)
        try:
            wait_until(lambda: process.poll() is not None or (printed.exists() and "ready" in printed.read_text()))
            assert process.poll() is None, Path(f"{folder}.stderr").read_text()
            yield
        finally:
            process.terminate()
            process.wait(RUN_S_MAX)

    def run(self, arguments: list[str], folder: Path, given: str = "") -> Said:
        """Run a command to its end."""
        process = self.start(arguments, folder, given)
        try:
            process.wait(RUN_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        stdout, stderr = (self.emptied(Path(f"{folder}.{name}").read_text(), folder) for name in ("stdout", "stderr"))
        return Said(process.returncode, stdout, stderr)


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
