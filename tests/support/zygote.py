"""A process that has imported what `weft` commands need, and forks one for each that is asked for.

``python -m tests.support.zygote`` with a socket as standard input, for `tests.support.forked`. It starts no thread and
no event loop: nothing of either would live on in what it forks. What hubs need starts threads of its allocators, which
know of forks.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pkgutil
import runpy
import signal
import socket
import sys
import tempfile
import time
import warnings
from typing import TYPE_CHECKING, TextIO

import msgspec

from tests.support import steps

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = "all"
"""Argument: import what hubs and audits need, too, pyarrow and deltalake among it. Any other: a module to prepare."""
EDGE = ("weft.config", "weft.edge_node", "weft.replication", "weft.commands")
HUB = ("weft.storage", "weft.cloud_hub")
"""Packages of which every module is imported: a user without rights may not be able to read it later."""
ALSO = (
    "weft.edge_node.node",
    "weft.cli",
    "weft.service.serving",
    "weft.storage.object_store.opening",
    "weft.storage.hub_keys",
    "uvloop",
    "argon2",
    "argon2.exceptions",
    "click._termui_impl",
    "click._textwrap",
    "click.shell_completion",
    "difflib",
    "encodings.ascii",
    "encodings.idna",
    "encodings.latin_1",
    "encodings.punycode",
    "stringprep",
)
ALSO_HUB = (
    "weft.cloud_hub.hub",
    "weft.cloud_hub.preflight",
    "weft.storage.table_writer.service",
    "weft.proofs.audit.audit",
)
REQUEST_BYTES_MAX = 1 << 20


class Request(msgspec.Struct):
    """A process to fork, which gets three descriptors besides: its standard input, output and error."""

    command: list[str]
    """The interpreter, ``-m``, a module, and its arguments."""
    folder: str
    environment: dict[str, str]
    new_session: bool
    umask: int
    user: int | None = None
    """User and group to become, without other groups."""


def import_everything(packages: tuple[str, ...], modules: tuple[str, ...]) -> None:
    """Import what commands import when they are called."""
    for name in modules:
        importlib.import_module(name)
    for name in packages:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            with contextlib.suppress(ModuleNotFoundError):  # of an extra, without which commands do not come to it
                importlib.import_module(module.name)


def _fork() -> int:
    """Fork in silence. Python 3.12 and later warn where libraries have threads, as if the node had printed it."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return os.fork()


def serve(control: socket.socket) -> tuple[Request, list[int]] | None:
    """Fork a process for each request; return in it, with the request and its descriptors.

    Its parent is gone when it begins: it is a child of the process that asked, which adopts orphans until it has the
    answer, the number, and so it can be waited for there like any other.

    Returns:
        None: nothing more will be asked for.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 3)
        if not message:
            return None
        (number, reported), (may_begin, begin) = os.pipe(), os.pipe()
        parent = _fork()
        if parent == 0:
            child = _fork()
            if child == 0:
                os.close(begin)
                os.read(may_begin, 1)
                for each in (number, reported, may_begin):
                    os.close(each)
                return msgspec.json.decode(message, type=Request), descriptors
            os.write(reported, b"%d" % child)
            os._exit(0)
        os.waitpid(parent, 0)
        control.send(os.read(number, 100))
        for each in (number, reported, may_begin, begin, *descriptors):
            os.close(each)


def become(request: Request, descriptors: list[int]) -> None:
    """Make of this process what one is that the interpreter has started with the command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.new_session:
        os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for name in os.environ.keys() - request.environment.keys():
        del os.environ[name]
    os.environ.update(request.environment)
    time.tzset()
    tempfile.tempdir = None
    os.chdir(request.folder)
    os.umask(request.umask)
    if request.user is not None:
        os.setgroups([])
        os.setgid(request.user)
        os.setuid(request.user)
    sys.path[0] = request.folder
    sys.orig_argv[:] = request.command
    sys.argv[:] = request.command[1:2] + request.command[3:]


def _stream(number: int, own: TextIO) -> TextIO:
    """Open a standard descriptor as the interpreter does."""
    made = open(number, "w" if number else "r", encoding=own.encoding, errors=own.errors, closefd=False)
    if number:
        unbuffered: bool = own.write_through  # type: ignore[attr-defined]
        made.reconfigure(line_buffering=not unbuffered and (number == 2 or made.isatty()), write_through=unbuffered)
    return made


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Have libraries of linear algebra start none: nothing here calculates with them."""
    given = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if given is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = given


def _run(module: str) -> None:
    if module == "weft":
        from weft.cli import main as run_weft

        run_weft()  # without a look at the files, which a user without rights may not read
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def _status(error: BaseException) -> int | None:
    """Return the status for an exception that nothing catches; None leaves the end to the interpreter."""
    if isinstance(error, KeyboardInterrupt):
        return None
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    return 1


class _End:
    """Ends a forked process before the interpreter takes down all that was imported: a copy of every page of it.

    What was registered for the exit has been called and threads have ended by then. An output that cannot be
    written is left to the interpreter.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        """Status to end with; None leaves it to the interpreter."""

    def leave(self) -> None:
        if self.status is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(self.status)


def _read_models() -> None:
    """Read what settings there are, as every process does that has a configuration, once for all."""
    from weft.config.models import EdgeConfig, HubConfig
    from weft.config.schema import model_shape

    model_shape(EdgeConfig)
    model_shape(HubConfig)


def main() -> None:
    """Serve, and run what is asked for in the processes that are forked."""
    end = _End()
    atexit.register(end.leave)  # before what is imported registers something, so that it is called after that
    import_everything(EDGE, ALSO)
    if sys.argv[1:] == [ALL]:
        with _one_thread():
            import_everything(HUB, ALSO_HUB)
    elif sys.argv[1:]:
        importlib.import_module(sys.argv[1]).prepare()
    _read_models()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the tests, which end this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not what coverage has made of it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # not what `nohup` has made of it
    gc.collect()
    gc.freeze()  # a collection in a child would copy all of it
    with socket.socket(fileno=os.dup(0)) as control:
        asked = serve(control)
    if asked is None:
        return
    become(*asked)
    if asked[0].command[2] == "weft" and asked[0].command[4:5] == ["run"]:
        steps.guard_this_process()
    end.status = 0
    try:
        _run(asked[0].command[2])
    except BaseException as error:
        end.status = _status(error)
        raise


if __name__ == "__main__":
    main()
