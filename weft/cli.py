"""The command line: runs a command of the table in ``weft.commands.groups``, and ends with a sentence and a status."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import NoReturn

import click

from weft.commands.groups import COMMANDS, LaterGroup
from weft.config.errors import ConfigError
from weft.config.release import VERSION
from weft.output import FAILURE_EXIT_CODE, STOPPED_EXIT_CODE, Refused, print_error, print_error_json
from weft.service.signals import hold_sighup

_EXTRAS = {
    "asyncua": "plant",
    "deltalake": "hub",
    "obstore": "hub",
    "pyarrow": "hub",
    "numpy": "hub",
    "grpc": "spark",
    "pandas": "spark",
    "pyiceberg": "iceberg",
    "py4j": "spark",
    "pyspark": "spark",
    "sklearn": "spark",
}
"""Libraries that an edge node does not need, and the extra that installs each."""
TRACEBACK_VARIABLE = "WEFT_TRACEBACK"
_BELOW_ZERO = re.compile(r"-[0-9][0-9.]*").fullmatch
_NODES = (("edge", "run"), ("hub", "run"))


@click.command(
    cls=LaterGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(VERSION, prog_name="weft", message="%(prog)s %(version)s")
def cli() -> None:
    """Run a command of the table."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run ``weft``. People get a sentence, never a traceback, unless ``WEFT_TRACEBACK=1`` asks for one."""
    given = sys.argv[1:] if arguments is None else arguments
    if tuple(given[:2]) in _NODES:
        # Before any import: loading a node's modules takes half a second on a small machine, and SIGHUP would end it.
        hold_sighup()
    # Found without click's parser: the answer to a command line that cannot be parsed must be JSON too.
    as_json = "--json" in given[: given.index("--")] if "--" in given else "--json" in given
    try:
        result = cli.main(arguments, prog_name="weft", standalone_mode=False)
    except click.Abort:
        _end("stopped before it was done", STOPPED_EXIT_CODE, as_json)
    except click.UsageError as found:
        error = _of_a_number(found, given)
        if not as_json:
            with contextlib.suppress(OSError):
                error.show()
            _exit(error.exit_code)
        _end(error.format_message(), error.exit_code, as_json)
    except (click.ClickException, Refused) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        _end(text, error.exit_code, as_json, error.__cause__)
    except BrokenPipeError:
        # The reader of our output went away (weft log dump | head), which is no error worth a sentence.
        _exit(FAILURE_EXIT_CODE)
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        _end(_sentence(error), FAILURE_EXIT_CODE, as_json)
    _exit(result if isinstance(result, int) else 0)


def _of_a_number(error: click.UsageError, given: list[str]) -> click.UsageError:
    """Return what to say of an option that does not exist. A number below zero looks like one: then it is what the
    command's number may be."""
    word = next((each for each in given if _BELOW_ZERO(each)), None)
    if not isinstance(error, click.NoSuchOption) or error.ctx is None or word is None or error.option_name != word[:2]:
        return error
    numbers = (each for each in error.ctx.command.params if isinstance(each, click.Argument))
    for argument in numbers:
        if isinstance(argument.type, click.types.IntParamType):
            try:
                argument.type_cast_value(error.ctx, word)
            except click.UsageError as says:
                return says
    return click.UsageError(f"'{word}' is neither an option nor a name: no name begins with a dash.", error.ctx)


def _exit(status: int) -> NoReturn:
    """End the process with ``status``, even when its output cannot be written."""
    if "pyarrow" in sys.modules:
        from weft.storage.native_threads import wait_at_exit

        wait_at_exit()
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # the process was started with it closed
            continue
        try:
            stream.flush()
        except OSError:
            # The unwritten output stays in the buffer. Python would write it again at exit, fail, and end with 120
            # instead of the status that reports the cause.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            status = status or FAILURE_EXIT_CODE
    sys.exit(status)


def _end(message: str, exit_status: int, as_json: bool, cause: BaseException | None = None) -> NoReturn:
    """Print the error and end the process."""
    # Standard error may be a file on the failing disk.
    with contextlib.suppress(OSError):
        if as_json:
            print_error_json(message, exit_status, cause.problems if isinstance(cause, ConfigError) else ())
        else:
            print_error(message)
    _exit(exit_status)


def _sentence(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and (missing := (error.name or "").partition(".")[0]) in _EXTRAS:
        return f'this needs {missing}, which is not installed: pip install "weft-fabric[{_EXTRAS[missing]}]"'
    if isinstance(error, PermissionError) and isinstance(error.filename, str):
        from weft.config.machine import why_denied

        return f"{error.filename}: {why_denied(error.filename, 'use')}"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    # Some libraries append pages of internals to a message; the first paragraph is the message.
    text = str(error).partition("\n\n")[0]
    if isinstance(error, OSError | RuntimeError) and text:
        return text
    if type(error).__module__ == "builtins" or not text:
        return f"unexpected {type(error).__name__}: {text} ({TRACEBACK_VARIABLE}=1 shows where)"
    return text
