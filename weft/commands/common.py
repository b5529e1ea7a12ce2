"""Parts that several commands share: loading a configuration, options, errors of files and stores."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from weft.config.errors import ConfigError, Finding, Problem, SettingError
from weft.config.load import Loaded, load
from weft.config.machine import Verdict, is_well, why_denied, why_unreadable
from weft.config.models import EdgeConfig, HubConfig
from weft.config.units import is_bucket
from weft.output import (
    FAILURE_EXIT_CODE,
    USAGE_EXIT_CODE,
    Failed,
    Refused,
    counted,
    harmless,
    print_error,
    print_json,
    problem_facts,
)
from weft.storage.filesystem import DirectoryInUse

if TYPE_CHECKING:
    from weft.storage.object_store import ObjectStore


_BUCKET_ADVICE = "Check the store's address, its endpoint and the credentials in the environment"

Config = TypeVar("Config", bound=msgspec.Struct)
Decorated = TypeVar("Decorated", bound=Callable[..., Any] | click.Command)


class ExistingPath(click.Path):
    """A path that must exist. A path without read access for this user is reported as denied, not as missing."""

    def __init__(self, *, dir_okay: bool = True) -> None:
        super().__init__(exists=True, dir_okay=dir_okay, readable=False)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the path, or raise an error that names its owner."""
        try:
            os.stat(value)
        except PermissionError as error:
            raise Refused(f"{os.fspath(value)}: {why_unreadable(error)}") from None
        except OSError:
            pass  # click says that it does not exist
        return super().convert(value, param, ctx)


config_argument = click.argument("config_file", metavar="CONFIG", type=click.Path(readable=False))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
by_option = click.option("--by", help="Name of the person who decided; user and machine of this process by default.")


def tenant_option(text: str) -> Callable[[Decorated], Decorated]:
    """Return the option ``--tenant`` of a command that takes ``default`` without it."""
    return click.option("--tenant", default="default", show_default=True, help=text)


def decided(recorded: str) -> Callable[[Decorated], Decorated]:
    """Return the options of an act, ``--reason`` and ``--by``.

    Args:
        recorded: where both are found later, for the help.
    """

    def decorate(command: Decorated) -> Decorated:
        return click.option("--reason", default="", help=f"Reason, in a few words; {recorded}.")(by_option(command))

    return decorate


log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level of log lines on standard error.",
)


def load_edge(path: str) -> EdgeConfig:
    """Return the checked configuration of an edge node. ``Refused`` says what is wrong."""
    return located_edge(path).config


def load_hub(path: str) -> HubConfig:
    """Return the checked configuration of a hub node. ``Refused`` says what is wrong."""
    return located_hub(path).config


def located_edge(path: str) -> Loaded[EdgeConfig]:
    """Return an edge's checked configuration with the lines of its settings. ``Refused`` says what is wrong."""
    from weft.edge_node.check.data_directory import name_source
    from weft.edge_node.check.rules import check

    loaded = _load(path, EdgeConfig, check, other="hub", only_there="store")
    name_source(loaded.config)
    return loaded


def check_functions(loaded: Loaded[EdgeConfig], stream: str | None = None) -> None:
    """Make the functions of a checked configuration, or those of one stream. ``Refused`` says which line is wrong."""
    from weft.edge_node.check.streams import is_derived

    if any(map(is_derived, loaded.config.streams.values())):
        from weft.edge_node.derived.definitions import function_findings

        found = [each for each in function_findings(loaded.config) if stream in (None, each.path[1])]
        if found:
            raise Refused(str(loaded.refuse(found)))


def check_code(loaded: Loaded[EdgeConfig]) -> None:
    """Check the signatures beside the files of functions, where the configuration asks for some. ``Refused`` says which
    file has none, or another one."""
    if loaded.config.functions_signed_by:
        from weft.edge_node.derived.definitions import code_findings

        if found := list(code_findings(loaded.config)):
            raise Refused(str(loaded.refuse(found)))


def located_hub(path: str) -> Loaded[HubConfig]:
    """Return a hub's checked configuration with the lines of its settings. ``Refused`` says what is wrong."""
    from weft.cloud_hub.check import check

    return _load(path, HubConfig, check, other="edge", only_there="data_dir")


def _load(
    path: str, model: type[Config], check: Callable[[Config], Sequence[Finding]], *, other: str, only_there: str
) -> Loaded[Config]:
    """Load a file; ``only_there`` is a setting that only the ``other`` kind of node has."""
    if "://" in path:
        kind = "edge" if model is EdgeConfig else "hub"
        raise Refused(f"{path}: a URL cannot be used here: name the {kind}'s configuration on this machine")
    try:
        return load(path, model, check)
    except ConfigError as error:
        if any(problem.path == (only_there,) for problem in error.problems):
            message = f"this is a configuration for `weft {other}`. Use that command, or name another file"
            error = ConfigError([Problem(path, 0, (), message)])
        raise Refused(str(error)) from error


def cannot_be_done(loaded: Loaded[Config], findings: Sequence[Finding]) -> Failed:
    """Return the failure for findings about this machine, such as a port in use, which may change by themselves."""
    error = loaded.refuse(findings)
    failure = Failed(str(error))
    failure.__cause__ = error
    return failure


@contextmanager
def located(loaded: Loaded[Config], directory: str) -> Iterator[None]:
    """Add file, line and setting to the errors of a node's folder, which keep the node from running."""
    try:
        yield
    except SettingError as error:
        raise cannot_be_done(loaded, [loaded.with_default(error.finding)]) from None
    except DirectoryInUse as error:
        message = f"{error}. Stop the node that runs with it, or name another folder"
        raise cannot_be_done(loaded, [Finding((directory,), message)]) from None


@contextmanager
def store_located(loaded: Loaded[HubConfig]) -> Iterator[None]:
    """Add file, line and setting to the errors of a hub's folder and store."""
    from weft.storage.cluster import ClusterUnusable
    from weft.storage.object_store import StoreError, StoreUnfit

    try:
        with located(loaded, "store"):
            yield
    except (ClusterUnusable, StoreUnfit) as error:
        raise cannot_be_done(loaded, [Finding(("store",), str(error))]) from None
    except StoreError as error:
        raise cannot_be_done(loaded, [Finding(("store",), store_trouble(loaded.config.store, error))]) from None


def store_trouble(uri: str, error: Exception) -> str:
    """Return the message of a store that did not answer, with advice for a bucket; a folder's error has its own."""
    return f"{error}. {_BUCKET_ADVICE}" if is_bucket(uri) else str(error)


def open_hub_store(uri: str) -> ObjectStore:
    """Return the store at ``uri``.

    Raises:
        Refused: the URI names no store.
        Failed: this machine cannot open it: a library is missing, or the environment's settings of S3 are wrong.
    """
    from weft.storage.object_store import StoreUnfit, open_store

    try:
        return open_store(uri)
    except ValueError as error:
        raise Refused(str(error)) from None
    except StoreUnfit as error:
        raise Failed(str(error)) from None


def existing_store(uri: str) -> ObjectStore:
    """Return a store to read. Raises as ``open_hub_store``, and ``Failed`` for a folder that does not exist."""
    folder = uri.removeprefix("file://")
    if "://" not in folder and not os.path.isdir(folder):
        raise Failed(f"--store {uri}: there is no such folder. Name a hub's `store`, or where it was copied to")
    return open_hub_store(uri)


@contextmanager
def using(path: str, *, makes: str = "") -> Iterator[None]:
    """Turn an error of reading or writing a file into a sentence.

    Args:
        makes: the command that creates a missing file.
    """
    try:
        yield
    except FileNotFoundError:
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise Failed(f"{path}: folder {folder} does not exist. Create it first") from None
        raise Failed(f"{path}: there is no such file" + (f". `{makes}` creates one" if makes else "")) from None
    except PermissionError as error:
        # A file is replaced by renaming a new one in its folder, so the denied path may be the folder.
        raise Failed(f"{path}: {why_denied(str(error.filename or path), 'use')}") from None
    except OSError as error:
        raise Failed(f"{path}: {why_unreadable(error)}") from None


yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def user_name() -> str:
    """Return the name of the user of this process; its number if the system has no name for it, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the latter from Python 3.13 on
        return f"uid {os.getuid()}"


def confirm(question: str, otherwise: str, option: str = "--yes") -> None:
    """Ask a question, and end the command unless the answer is yes.

    Args:
        otherwise: beginning of the message when there is no terminal to ask on: "nothing was dropped".
        option: the one that answers in advance.
    """
    try:
        is_wanted = click.confirm(question, err=True)
    except click.Abort:  # no answer: Ctrl-C, or the end of the input
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        raise Refused(f"{otherwise}: there is no terminal to ask on. Add {option} to confirm in advance") from None
    if not is_wanted:
        raise click.Abort


# Answers of ``weft edge check`` and ``weft hub check``: errors and warnings, or the news that the configuration is
# good. And the lines of the doctors.


def until(certificates: Mapping[str, str]) -> str:
    """Return the end of a summary about certificates: the first day on which one ends; empty without any."""
    return f", certificates valid until {min(certificates.values())}" if certificates else ""


class CheckAnswer:
    """The answer of one check. With ``as_json`` it is always a document on standard output, also for errors."""

    def __init__(self, file: str, as_json: bool) -> None:
        self._file = file
        self._as_json = as_json

    def load(self, load: Callable[[str], Loaded[Config]]) -> Loaded[Config]:
        """Load the file; end the command if it cannot be loaded."""
        try:
            return load(self._file)
        except Refused as refusal:
            error = refusal.__cause__
            if not self._as_json or not isinstance(error, ConfigError):
                raise
            self._print([], error.problems, {})
            raise click.exceptions.Exit(USAGE_EXIT_CODE) from None

    def give(
        self,
        loaded: Loaded[Config],
        *,
        errors: Sequence[Finding],
        warnings: Sequence[Finding],
        facts: Mapping[str, Any],
        summary: str,
    ) -> int:
        """Print the findings and return the exit status."""
        wrong, doubtful = self._placed(loaded, errors), self._placed(loaded, warnings)
        if self._as_json:
            self._print(doubtful, wrong, facts)
        else:
            if wrong:
                print_error("\n".join(map(str, wrong)))
            for problem in doubtful:
                click.echo(f"warning: {problem}", err=True)
            if not wrong:
                click.echo(f"{self._file} is good: {summary}")
        return USAGE_EXIT_CODE if wrong else 0

    def _placed(self, loaded: Loaded[Config], findings: Sequence[Finding]) -> list[Problem]:
        """Add lines to findings; a finding about several settings has no line."""
        problems = loaded.refuse(findings).problems if findings else []
        return [problem if problem.path else problem._replace(line=0) for problem in problems]

    def _print(self, warnings: Sequence[Problem], errors: Sequence[Problem], facts: Mapping[str, Any]) -> None:
        found = {
            "errors": [problem_facts(each) for each in errors],
            "warnings": [problem_facts(each) for each in warnings],
        }
        print_json({"file": self._file, "good": not errors, **found, **facts})


def print_verdicts(config_file: str, lines: Iterable[Verdict], *, as_json: bool) -> int:
    """Print the lines of a doctor, each when it is known. Return the exit status."""
    verdicts = []
    for verdict in lines:
        verdicts.append(verdict)
        if not as_json:
            click.echo(harmless(f"{verdict.state:<8} {verdict.check}: {verdict.says}"))
    well = is_well(verdicts)
    if as_json:
        print_json({"file": config_file, "good": well, "lines": [each._asdict() for each in verdicts]})
    elif not well:
        click.echo(f"{counted(sum(each.state == 'act' for each in verdicts), 'line')} to act on", err=True)
    return 0 if well else FAILURE_EXIT_CODE
