"""The shipped pipelines by name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from importlib.resources import files

from weft.config.load import Loaded, load, parse
from weft.config.pipelines.pipeline import Pipeline, check_pipeline

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
