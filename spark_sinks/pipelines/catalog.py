"""The shipped pipelines by name."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from importlib.resources import files

from weft.config.errors import Finding, KeyPath, format_path
from weft.config.load import Loaded, load, parse
from weft.config.pipelines import Pipeline, check_pipeline

_FOLDER = files("spark_sinks.pipelines") / "shipped"


class UnknownPipeline(ValueError):
    """The error for a name of neither a file nor a shipped pipeline."""


def names() -> list[str]:
    """Return the names of the shipped pipelines, sorted."""
    return sorted(each.name.removesuffix(".yaml") for each in _FOLDER.iterdir() if each.name.endswith(".yaml"))


def text_of(name: str) -> str:
    """Return the YAML of a shipped pipeline.

    Raises:
        UnknownPipeline: there is no shipped pipeline of that name.
    """
    if name not in names():
        near = difflib.get_close_matches(name, names(), 1, 0.6)
        advice = f"Did you mean {near[0]}?" if near else f"Shipped are {', '.join(names())}"
        raise UnknownPipeline(f"there is no shipped pipeline {name!r}. {advice}")
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def located(name: str, settings: Sequence[str] = ()) -> Loaded[Pipeline]:
    """Load a pipeline: a YAML file, or a shipped one by its name.

    In a shipped pipeline, relative paths start at the working directory.

    Raises:
        ConfigError: a setting is wrong.
        UnknownPipeline: there is neither such a file nor a shipped pipeline of that name.
    """
    if is_file(name):
        return load(name, Pipeline, check_pipeline, settings)
    try:
        return parse(text_of(name), name, Pipeline, check_pipeline, settings)
    except UnknownPipeline as error:
        raise UnknownPipeline(f"{error}; there is no file {name} either") from None


def is_file(name: str) -> bool:
    """Return whether a name means a file, not a shipped pipeline."""
    # A folder does not count: a table that a pipeline made often has the pipeline's name.
    return os.path.isfile(name) or os.sep in name or name.endswith((".yaml", ".yml"))


# The error of a pipeline that cannot run as it is written.


class PipelineError(ValueError):
    """A setting of a pipeline that does not work. The message names the problem and the remedy."""

    def __init__(self, path: KeyPath, message: str) -> None:
        self.finding = Finding(path, message)
        super().__init__(f"{format_path(path)}: {message}")

    def __reduce__(self) -> tuple[type[PipelineError], tuple[KeyPath, str]]:
        """Return the arguments for a copy: Spark sends errors from process to process by pickle."""
        return type(self), self.finding


# The text of a SELECT without trailing semicolons and comments.

_PARTS = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<line>--(?:\\\n|[^\r\n])*)
    | (?P<block>/\*)
    | (?P<end>;)
    | (?P<text>
        (?<![A-Za-z0-9_])[rR](?:'[^']*'|"[^"]*")
        | '(?:[^'\\]|\\.|'')*'
        | "(?:[^"\\]|\\.|"")*"
        | `(?:[^`]|``)*`
        | .
      )
    """,
    re.VERBOSE | re.DOTALL,
)
"""Parts of Spark's SQL: a semicolon in a comment ends no statement, and quotes hide both."""


class SeveralStatements(ValueError):
    """Text with a statement behind a semicolon."""


def one_statement(text: str) -> str:
    """Return the text up to the end of its statement: without the semicolons and comments behind it.

    Raises:
        SeveralStatements: another statement follows.
    """
    at = last = 0
    is_over = False
    while at < len(text):
        found = _PARTS.match(text, at)
        assert found is not None
        kind, at = found.lastgroup, found.end()
        if kind == "block":
            at = _after_block(text, at)
        elif kind == "end":
            is_over = True
        elif kind == "text":
            if is_over:
                raise SeveralStatements
            last = at
    return text[:last]


def _after_block(text: str, at: int) -> int:
    """Return the position after a bracketed comment, which may be nested; the end of the text if it is not closed."""
    depth = 1
    for found in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if found[0] == "/*" else -1
        if not depth:
            return found.end()
    return len(text)
