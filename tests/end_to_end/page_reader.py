"""The code of a documentation page, as its reader sees it: blocks with a language, and a shell block's commands."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError

from examples.demo.fabric import free_port, get_json
from spark_sinks.runtime.session import cache_directory, find_java_home
from tests.end_to_end import page_interpreter
from tests.support import forked
from tests.support.spark_classes import QUICK

RUN = ("sh", "python", "sql", "yaml")
SHOWN = ("text", "json", "mermaid", "toml", "javascript", "nginx", "haproxy", "caddyfile")
"""Languages of blocks that are only looked at."""
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}.*\n)(?:(?: {4}.*)?\n)*")
_COMMENT_NAME = re.compile(r"# (\S+\.(?:ya?ml|conf))\b")
_PROSE_NAME = re.compile(r"`([\w./-]+\.(?:ya?ml|conf))`")


class Block(NamedTuple):
    """A block of code."""

    language: str
    text: str
    line: int
    file: str | None
    """The file that the text makes, for YAML: named in its first line, or last before it."""
    is_followed: bool
    """Whether no comment before it says that the page's test leaves it out."""


def blocks(page: Path) -> list[Block]:
    """Return the page's blocks in their order. An indented block is one of shell commands."""
    text = page.read_text()
    found = [(match.start(), match[2], textwrap.dedent(match[3])) for match in _FENCE.finditer(text)]
    rest = _FENCE.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)
    found += [
        (match.start(), "sh", textwrap.dedent(match[0]).rstrip("\n") + "\n")
        for match in _INDENTED.finditer(rest)
        if not _continues_a_list(rest[: match.start()])
    ]
    return [
        Block(language, body, text.count("\n", 0, start) + 1, _file(body, text[:start]), _is_followed(text[:start]))
        for start, language, body in sorted(found)
    ]


def _continues_a_list(before: str) -> bool:
    return before.rstrip().rpartition("\n\n")[2].lstrip().startswith(("- ", "* ", "1. "))


def _is_followed(before: str) -> bool:
    return not before.rstrip().rpartition("\n")[2].lstrip().startswith("<!-- not followed:")


def _file(body: str, before: str) -> str | None:
    if commented := _COMMENT_NAME.match(body):
        return commented[1]
    names: list[str] = _PROSE_NAME.findall(before)
    return names[-1] if names else None


def commands(shell: str) -> Iterator[str]:
    """Yield the commands of a shell block: lines, joined where one ends in a backslash or a quote is open."""
    held = ""
    for line in shell.splitlines(keepends=True):
        held += line
        if held.rstrip().endswith("\\") or _open_quote(held):
            continue
        if held.strip() and not held.lstrip().startswith("#"):
            yield held.strip()
        held = ""
    assert not held.strip(), f"a command without an end: {held}"


def _open_quote(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


# --- Follows a documentation page to the letter: its files, commands and scripts, on real processes and free ports


HERE = Path(__file__).parent
WAIT_S = 240.0
STOP_S = 40.0
PORTS = (1883, 4840, 5672, 8080, 8081, 8090)
ENDED_WELL = frozenset({0, 130})
"""Exit statuses of what Ctrl-C ends."""
QUICK_HUB = ("tables: {interval: 1s}\n", "mark_interval: 1s\n", "processes: 1\n")
"""What a test's hub has besides: a person waits for a table, for completeness, and for an interpreter for each core."""
STAND_INS = {"mosquitto_pub": "mosquitto_tool.py", "mosquitto_sub": "mosquitto_tool.py", "curl": "curl_tool.py"}
"""Tools that pages use and a machine may lack, and what does the same there."""
SERVICE = re.compile(r"weft (edge|hub) run\b")
FOLLOWS = re.compile(r"weft edge tail [^#]*--follow")
_CHECKPOINT = re.compile(r'"checkpointLocation", "([^"]+)"')
_KEEP = "set -e\n{command}\nenv -0 > {state}/env; pwd > {state}/cwd\n"
_EXPANDS = re.compile(r"\$[\w{(]|`|(?<=\s)~")
"""What a shell replaces in a command."""
_OPERATORS = frozenset("();<>|&")


class PageReader:
    """A person with an empty folder, a terminal or several, and one Python prompt.

    Args:
        folder: empty; where the page is followed.
        texts: what is written otherwise than on the page: what names other machines, or folders of root.
    """

    def __init__(self, folder: Path, texts: Mapping[str, str]) -> None:
        self.ports = {port: free_port() for port in PORTS}
        self.texts = dict(texts)
        self.said = ""
        self.happened: set[str] = set()
        self.statuses: dict[str, int] = {}
        self._state = folder / "state"
        self._state.mkdir()
        (folder / "home").mkdir()
        (self._state / "cwd").write_text(f"{folder / 'home'}\n")
        (self._state / "env").write_text("\0".join(f"{name}={value}" for name, value in _environment(folder).items()))
        self._services: dict[str, subprocess.Popen[str]] = {}
        self._kept: frozenset[str] = frozenset()
        self._prompt: subprocess.Popen[str] | None = None

    @property
    def folder(self) -> Path:
        """Where the reader's terminal is."""
        return Path((self._state / "cwd").read_text().strip())

    @property
    def _environment(self) -> dict[str, str]:
        """Variables that its commands have exported."""
        lines = (self._state / "env").read_text().rstrip("\0").split("\0")
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def _open(self, command: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command in the terminal's folder; with neither bash nor an interpreter where `weft` is all of it."""
        words = words_of(command)
        arguments = [sys.executable, "-m", *words] if words[:1] == ["weft"] else ["bash", "-c", command]
        return forked.Popen(
            arguments, env=self._environment, cwd=self.folder, stdout=subprocess.PIPE, text=True, **options
        )

    def read(self, block: Block) -> None:
        """Do what a block says: write a file, or run a script. Shell blocks are run command by command."""
        text = self.replaced(block.text)
        if block.language == "yaml":
            assert block.file, f"no name for the file that begins with {text[:60]!r}"
            self.write(block.file, block.text)
        elif block.language == "python":
            self._python(text)
        elif block.language == "sql":
            statements = [part.strip() for part in text.split(";") if part.strip()]
            self._python("\n".join(f"spark.sql({statement!r}).show()" for statement in statements))

    def write(self, name: str, text: str) -> None:
        """Write a file of a page."""
        path = self.folder / self.replaced(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        added = "".join(line for line in QUICK_HUB if path.name == "hub.yaml" and line.partition(" ")[0] not in text)
        path.write_text(self.replaced(text) + added)

    def run(self, given: str, answer: str = "") -> None:
        """Type a command of a page into a terminal; into one of its own when it does not end by itself.

        Args:
            given: the command as it stands on the page.
            answer: what is typed when the command asks.
        """
        command = self.replaced(given)
        if SERVICE.match(command) or FOLLOWS.match(command):
            self._start(command)
            return
        if not command.startswith("mosquitto_pub"):
            self.settle()
        if words_of(command)[:1] != ["weft"]:
            command = _KEEP.format(state=self._state, command=command)
        with self._open(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                out, err = process.communicate(answer, timeout=WAIT_S)
            except BaseException:
                process.kill()
                raise
        text = f"$ {self.replaced(given)}\n{out}{err}"
        self.said += text
        assert process.returncode == 0, text
        assert not (given.startswith("curl") and '"detail":' in out), text

    def replaced(self, text: str) -> str:
        """Return a page's text with free ports, and with what stands for other machines and folders of root."""
        for shown, meant in self.texts.items():
            text = text.replace(shown, meant)
        for port, free in self.ports.items():
            text = re.sub(rf"(?<=[\w.\]]:){port}\b|(?<=-p ){port}\b", str(free), text)
        return text

    def settle(self) -> None:
        """Wait until what was published is at the hub and in the table: a person is slower than the fabric."""
        if {"edge", "hub"} <= self._services.keys():
            self._wait_for(self._is_settled, "the records to reach the table")

    def _is_settled(self) -> bool:
        try:
            edge = get_json(f"http://127.0.0.1:{self.ports[8080]}/status")
            if any(link["state"] != "connected" or link["pending_records"] for link in edge["links"].values()):
                return False
            hub = get_json(f"http://127.0.0.1:{self.ports[8090]}/v1/streams")
        except HTTPError as error:
            return error.code == HTTPStatus.UNAUTHORIZED  # The hub tells its table's position to those with a token.
        except OSError:
            return False
        rows = {stream["stream"]: stream["table_rows"] for stream in hub["streams"]}
        kept = {name: stream["durable_end"] for name, stream in edge["streams"].items()}
        return all((rows.get(name) or 0) == end for name, end in kept.items())

    def _start(self, command: str) -> None:
        process = self._open(command, stderr=subprocess.STDOUT, start_new_session=True)
        kind = found[1] if (found := SERVICE.match(command)) else "follow"
        assert kind not in self._services, f"{command}: the page has another one running"
        self._services[kind] = process
        said: list[str] = []
        threading.Thread(target=_drain, args=(process, said), daemon=True).start()
        if kind == "follow":
            return
        self._wait_for(lambda: "ready" in "".join(said) or process.poll() is not None, f"{command} to be ready")
        assert process.poll() is None, f"$ {command}\n{''.join(said)}"

    def _python(self, text: str) -> None:
        self.settle()
        file = self._state / f"block-{len(list(self._state.glob('block-*')))}.py"
        file.write_text(text)
        if self._prompt is None:
            self._prompt = subprocess.Popen(
                [sys.executable, str(page_interpreter.__file__)],
                env=self._environment,
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(self._state / "python-stderr").open("w"),
                text=True,
            )
        self._type(str(file), text)

    def _type(self, typed: str, text: str = "") -> None:
        """Have the prompt do what a line of its input says, and take what it prints."""
        assert self._prompt is not None
        assert self._prompt.stdin is not None
        assert self._prompt.stdout is not None
        self._prompt.stdin.write(f"{typed}\n")
        self._prompt.stdin.flush()
        if "await_termination(" in text and "availableNow" not in text:  # the latter ends by itself
            commit = self.folder / _CHECKPOINT.findall(text)[-1] / "commits" / "0"
            self._wait_for(lambda: commit.exists() or self._prompt_ended(), f"{commit}")
            self._prompt.send_signal(signal.SIGINT)
        said = []
        for line in self._prompt.stdout:
            if line.rstrip() == page_interpreter.DONE:
                break
            said.append(line)
        else:
            raise AssertionError(f"{text}\n{''.join(said)}\n{self.python_stderr()}")
        self.said += "".join(said)
        assert "KeyboardInterrupt" not in self.python_stderr(), self.python_stderr()

    def _prompt_ended(self) -> bool:
        assert self._prompt is not None
        return self._prompt.poll() is not None

    def python_stderr(self) -> str:
        """Return what the Python prompt printed on its standard error."""
        return (self._state / "python-stderr").read_text() if self._prompt else ""

    def _wait_for(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}\n{self.said}{self.python_stderr()}"
            time.sleep(0.1)

    def keep(self) -> None:
        """Take what is there for every page that follows."""
        shutil.copy(self._state / "env", self._state / "env-kept")
        self._kept = frozenset(os.listdir(self.folder))

    def turn_page(self, texts: Mapping[str, str]) -> None:
        """Begin another page, with what was kept, in the same Python: no name of the page before is left in it."""
        self.texts, self.said, self.happened = dict(texts), "", set()
        if (follower := self._services.pop("follow", None)) is not None:
            follower.send_signal(signal.SIGINT)
            assert _end(follower) in ENDED_WELL
        shutil.copy(self._state / "env-kept", self._state / "env")
        if self._prompt is not None:
            self._type(page_interpreter.TURN)
        for name in set(os.listdir(self.folder)) - self._kept:
            path = self.folder / name
            if name == ".weft":  # Python still has its tables' temporary files there
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def close(self) -> None:
        """End what was started, by Ctrl-C."""
        if self._prompt is not None:
            assert self._prompt.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._prompt.stdin.close()
            _end(self._prompt)
        for process in self._services.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        self.statuses = {name: _end(process) for name, process in self._services.items()}


def _end(process: subprocess.Popen[str]) -> int:
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _drain(process: subprocess.Popen[str], said: list[str]) -> None:
    assert process.stdout is not None
    said.extend(process.stdout)


def words_of(command: str) -> list[str]:
    """Return the words of a command that a shell would pass on as they stand, else nothing. Names with ``*`` stay."""
    parts = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    parts.whitespace_split = True
    words = list(parts)
    return [] if _EXPANDS.search(command) or any(_OPERATORS.issuperset(word) for word in words) else words


def _environment(folder: Path) -> dict[str, str]:
    """What a new terminal has, with `weft` on the PATH. Stand-ins are there for tools that are not."""
    tools = folder / "bin"
    tools.mkdir()
    for name in STAND_INS:
        if shutil.which(name) is None:
            stand_in(tools / name)
    binaries = Path(sys.executable).parent
    path = os.pathsep.join(map(str, (binaries, tools, os.environ["PATH"])))
    home = find_java_home(os.environ, cache_directory())
    java = {} if home is None else {"JAVA_HOME": home}
    temporary = folder / "tmp"
    temporary.mkdir()
    own = {"HOME": str(folder / "home"), "TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
    return {"PATH": path} | forked.EARLY | own | java_options() | java


def java_options() -> dict[str, str]:
    """Return variables that let Java start quickly and keep its files in the temporary folder of this run.

    Half of a JVM's start is compiling what runs once. Java takes /tmp whatever TMPDIR says. A test's own folder would
    be too deep: Spark makes Unix sockets there, whose paths have at most 107 bytes.
    """
    return {"JDK_JAVA_OPTIONS": f"{QUICK} -Djava.io.tmpdir={tempfile.gettempdir()}"}


def stand_in(path: Path) -> Path:
    """Make a stand-in for the tool that the path's last part names."""
    path.write_text(f"#!{sys.executable}\n" + (HERE / STAND_INS[path.name]).read_text())
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def page_reader(folder: Path, texts: Mapping[str, str]) -> Iterator[PageReader]:
    """A reader whose processes are ended; they must end well."""
    reader = PageReader(folder, texts)
    try:
        yield reader
    finally:
        reader.close()
    assert ENDED_WELL.issuperset(reader.statuses.values()), reader.statuses
