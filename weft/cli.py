"""The command line. Each command's code is imported when it is called, so that an edge node never loads the hub's."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import click

from weft.output import FAILURE_EXIT_CODE, USAGE_EXIT_CODE, Refused, print_error

_COMMANDS = {
    "edge": "weft.commands.edge",
    "hub": "weft.commands.hub",
    "config": "weft.commands.config",
    "log": "weft.commands.log",
    "token": "weft.commands.token",
    "user": "weft.commands.user",
    "audit": "weft.commands.audit",
    "demo": "weft.commands.demo",
}
"""Module of each command; the command in it is called ``command``."""
_EXTRAS = {
    "deltalake": "hub", "obstore": "hub", "pyarrow": "hub", "numpy": "hub",
    "pandas": "spark", "pyspark": "spark", "paho": "demo",
}  # fmt: skip
"""What an edge goes without, and the extra that brings it."""
TRACEBACK_VARIABLE = "WEFT_TRACEBACK"


class _Commands(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(_COMMANDS[cmd_name]).command
        assert isinstance(command, click.Command)
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="weft-fabric", prog_name="weft", message="%(prog)s %(version)s")
def cli() -> None:
    """Weft carries device messages from edges to open tables: acknowledged is on disk, and in the table exactly once.

    \b
    Exit status: 0 done, 1 it failed, 2 wrong usage or configuration.
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point of ``weft``. People get a sentence, never a traceback, unless ``WEFT_TRACEBACK=1`` asks for it."""
    try:
        result = cli.main(arguments, prog_name="weft", standalone_mode=False)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except Refused as error:
        print_error(str(error))
        sys.exit(USAGE_EXIT_CODE)
    except BrokenPipeError:
        # The reader of our output went away (weft log dump | head); Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILURE_EXIT_CODE)
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        print_error(_sentence(error))
        sys.exit(FAILURE_EXIT_CODE)
    sys.exit(result if isinstance(result, int) else 0)


def _sentence(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and (missing := (error.name or "").partition(".")[0]) in _EXTRAS:
        advice = f'in the repository, pip install ".[{_EXTRAS[missing]}]" (docs/how-to/install.md)'
        return f"this needs {missing}, which is not installed: {advice}"
    # Some libraries append pages of their innards to a message; the first paragraph is the message.
    text = str(error).partition("\n\n")[0]
    if isinstance(error, OSError | RuntimeError) and text:
        return text
    if type(error).__module__ == "builtins" or not text:
        return f"unexpected {type(error).__name__}: {text} ({TRACEBACK_VARIABLE}=1 shows where)"
    return text
