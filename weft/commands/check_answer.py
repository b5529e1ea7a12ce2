"""Answers of ``weft edge check`` and ``weft hub check``: errors and warnings, or the news that the configuration is
good. And the lines of the doctors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click
import msgspec

from weft.config.errors import ConfigError, Finding, Problem
from weft.config.load import Loaded
from weft.config.verdict import Verdict, is_well
from weft.output import (
    FAILURE_EXIT_CODE,
    USAGE_EXIT_CODE,
    Refused,
    counted,
    harmless,
    print_error,
    print_json,
    problem_facts,
)

Config = TypeVar("Config", bound=msgspec.Struct)


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
