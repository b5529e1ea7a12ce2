"""Python steps: the function behind ``module:function``, and what it returns."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame

from spark_sinks.pipelines.analysis import explained, is_of_spark
from spark_sinks.pipelines.context import Context
from spark_sinks.pipelines.errors import PipelineError
from weft.config.errors import KeyPath
from weft.config.pipelines.steps import Step

_NEEDS_BATCH = "must be executed with writeStream.start()"
StepFunction = Callable[..., DataFrame]
CONTEXT = "context"
"""Parameter by which a function gets the pipeline's ``Context``."""


def load_function(name: str, path: KeyPath) -> StepFunction:
    """Return the function that ``module:function`` names.

    Raises:
        PipelineError: there is no such module or function, or the module fails when it is imported.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise PipelineError(path, _not_found(module_name, error)) from None
    except (Exception, SystemExit) as error:
        raise PipelineError(path, f"module {module_name} cannot be imported: {_said(error)}") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise PipelineError(
            path,
            f"module {module_name} has no function {function_name}. It has {', '.join(known) or 'none'}",
        )
    return function


def call(step: Step, frame: DataFrame, context: Context, path: KeyPath) -> DataFrame:
    """Return the result of a Python step for a DataFrame.

    Raises:
        PipelineError: the function cannot be called with the step's options, fails, or returns something else.
    """
    assert step.python is not None
    function = load_function(step.python, path)
    named = arguments(function, step, context, path)
    try:
        result = function(frame, **named)
    except PipelineError:
        raise
    except (Exception, SystemExit) as error:
        raise PipelineError(path, f"{step.python} failed: {_said(error)}") from error
    if not (hasattr(result, "sparkSession") and hasattr(result, "schema")):
        raise PipelineError(path, f"{step.python} returned {_kind(result)}. Return a DataFrame of Spark")
    return result


def arguments(function: StepFunction, step: Step, context: Context, path: KeyPath) -> Mapping[str, Any]:
    """Return the arguments by name: the step's options, and the context for a function that has a parameter for it.

    Raises:
        PipelineError: the function does not accept these options, or needs others.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return step.options
    named = dict(step.options)
    if CONTEXT in signature.parameters and CONTEXT not in named:
        named[CONTEXT] = context
    try:
        signature.bind(None, **named)
    except TypeError as error:
        wanted = [str(each) for name, each in list(signature.parameters.items())[1:] if name != CONTEXT]
        raise PipelineError(
            (*path[:-1], "options"),
            f"{step.python} cannot be called with these options: {error}. "
            f"It takes the DataFrame and {', '.join(wanted) or 'no option'}",
        ) from None
    return named


def _not_found(module: str, error: ModuleNotFoundError) -> str:
    missing = error.name or module
    if module == missing or module.startswith(f"{missing}."):
        return f"there is no module {missing}. Put {missing}.py into the pipeline's folder, or install its package"
    return f"module {module} needs {missing}, which is not installed for {sys.executable}"


def _said(error: BaseException) -> str:
    """Return the sentence of an error with its place in the user's code."""
    if is_of_spark(error) and _NEEDS_BATCH in str(error):
        return "it asks for rows, and a streaming DataFrame has none before the query runs. Give the step `mode: batch`"
    if is_of_spark(error):
        return explained(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not _is_library(each.filename)]
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}:{error.lineno})"
        return f"{error.msg}{place}"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{place}"


def _is_library(file: str) -> bool:
    return file == __file__ or "site-packages" in file or "importlib" in file or file.startswith("<")


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
