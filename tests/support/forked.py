"""Processes of `weft` that are forked from one that has imported everything: 6 ms of processor time, not 1,000.

``Popen`` is the one of `subprocess` in all else: what it starts is a child of this process, with the command's own
arguments, folder, environment and descriptors. Tests of what an interpreter does before a command begins, or of a
process's memory, start one with `subprocess` itself.

All have one seed of ``hash``, so that sets of words have one order in all of them. A process whose environment sets
``PYTHONHASHSEED`` is an interpreter of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import inspect
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.support import zygote

ROOT = Path(__file__).parents[2]
READ_BEFORE_MAIN = ("COVERAGE_", "LANG", "LC_", "LD_", "MALLOC_", "OPENBLAS_", "PYTHON")
"""How variables begin that count only when an interpreter starts: where they differ, one is started."""
OF_HUBS = ("audit", "hub", "trace")
"""Commands that need more than an edge node has."""
PREPARED = ("tests.support.opcua_server",)
"""Modules with a ``prepare`` of their own, whose processes are forked from one that has called it."""
_PR_SET_CHILD_SUBREAPER = 36

_NAMES = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")

listeners: list[Callable[[int, Sequence[str]], None]] = []
"""Called with process and command after each fork."""


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_BEFORE_MAIN)}


class Popen(subprocess.Popen[Any]):
    """A process: forked where the command is ``python -m MODULE ...``, else as `subprocess` has it."""

    def _execute_child(self, *given: Any) -> None:
        asked = dict(zip(_NAMES, given, strict=True))
        command = [] if isinstance(asked["args"], str) else [os.fsdecode(each) for each in asked["args"]]
        variables = os.environ if asked["env"] is None else asked["env"]
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}
        user, groups = asked["uid"], (asked["gid"], asked["gids"])
        needs_exec = (
            sys.platform != "linux"
            or command[:2] != [sys.executable, "-m"]
            or any(asked[name] for name in ("executable", "preexec_fn", "pass_fds", "shell"))
            or asked["process_group"] != -1
            or groups != ((None, None) if user is None else (user, []))
            or _early(environment) != EARLY
        )
        if needs_exec:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        folder, umask = os.path.abspath(os.fsdecode(asked["cwd"] or ".")), asked["umask"]
        if umask < 0:
            umask = _umask()
        request = zygote.Request(command, folder, environment, asked["start_new_session"], umask, user)
        descriptors = [
            own if asked[name] == -1 else asked[name] for own, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
        ]
        try:
            self.pid = _fork(request, descriptors)
        finally:
            self._close_pipe_fds(*(asked[name] for name in _PIPES))  # type: ignore[attr-defined]
        self._child_created = True
        for listener in listeners:
            listener(self.pid, command)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; not by looking again and again, as `subprocess` does."""
        if timeout is None or self.returncode is not None or sys.platform != "linux":
            return super().wait(timeout)
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:  # another thread has waited for it meanwhile
            return super().wait(timeout)
        try:
            ends = select.poll()
            ends.register(descriptor, select.POLLIN)
            if not ends.poll(max(0.0, timeout) * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout)
        finally:
            os.close(descriptor)
        return super().wait()


def run(
    command: Sequence[str],
    *,
    check: bool = False,
    capture_output: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end, as `subprocess.run` does."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done


class _Zygote:
    """A process that forks others."""

    def __init__(self, start: type[subprocess.Popen[Any]], *arguments: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name not in _early(os.environ)} | EARLY
        with theirs:
            self._process = start(
                [sys.executable, "-m", zygote.__name__, *arguments],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                env=environment,
            )
        atexit.register(self._end)

    def fork(self, request: zygote.Request, descriptors: Sequence[int]) -> int:
        """Return the number of the process, which is this one's child."""
        with _adopting_orphans():
            socket.send_fds(self._control, [msgspec.json.encode(request)], descriptors)
            answer = self._control.recv(100)
        if not answer:
            raise RuntimeError("the process that forks others has ended")
        return int(answer)

    def _end(self) -> None:
        self._control.close()
        self._process.wait()


EARLY = _early(os.environ)
"""Those that this process was started with."""
_zygotes: dict[str, _Zygote] = {}
"""Argument of `tests.support.zygote`, empty for nodes at the edge -> the process."""
_lock = threading.RLock()


def _fork(request: zygote.Request, descriptors: Sequence[int]) -> int:
    """Fork from the process that is there for nodes at the edge and their commands, or from one that has more."""
    if request.command[2] in PREPARED:
        kind = request.command[2]
    elif request.user is not None or request.command[3:4] in ([name] for name in OF_HUBS):
        kind = zygote.ALL  # a user without rights may not be able to read what would have to be imported later
    else:
        kind = ""
    with _lock:
        if kind not in _zygotes:
            _zygotes[kind] = _Zygote(Popen, kind) if kind else _Zygote(subprocess.Popen)
        return _zygotes[kind].fork(request, descriptors)


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Become the parent of processes below this one whose own parent ends, for as short as a fork takes.

    At other times they are the system's: tests look whether what a killed process had started has ended.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _umask() -> int:
    """Return that of this process, which can only be read elsewhere without setting it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    raise LookupError("Umask")
