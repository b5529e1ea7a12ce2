"""Paths to values in a payload: ``temperature``, ``motor.rpm``, ``readings[0].value``, ``["a.b"]``, ``$``."""

from __future__ import annotations

import json
import re

from weft.config.units import quoted

STEPS_MAX = 16
"""Longest path. Each step is a look into an object or an array."""
INDEX_MAX = 65_535
WORDS = "a path such as motor.rpm or readings[0].value"
_STEP = re.compile(r'\.?([^.\[\]"\s$][^.\[\]"]*)|\[([0-9]{1,9})\]|\[("(?:[^"\\]|\\.)*")\]')

FieldPath = tuple[str | int, ...]
"""Names of fields, and places in arrays counted from 0. The empty path is the payload itself."""


def parse_path(text: str) -> FieldPath:
    """Return the steps of a path. ``$`` is the payload itself, and may begin any path.

    Raises:
        ValueError: it is not a path, or has more than ``STEPS_MAX`` steps.
    """
    rest = text.strip()
    at = 1 if rest.startswith("$") else 0
    steps: list[str | int] = []
    while at < len(rest):
        match = _STEP.match(rest, at)
        # A dot separates names. Before the first one it is an error, unless that follows ``$``.
        is_apart = match is not None and (match[1] is None or (at > 0) == rest.startswith(".", at))
        if match is None or not is_apart:
            raise ValueError(
                f'expected {WORDS}, got {quoted(text)}. Put a name with dots or brackets in quotes: ["a.b"]'
            )
        steps.append(_step(match, text))
        at = match.end()
    if not rest:
        raise ValueError(f"expected {WORDS}, got nothing")
    if len(steps) > STEPS_MAX:
        raise ValueError(f"expected a path of at most {STEPS_MAX} steps, got {len(steps)} in {quoted(text)}")
    return tuple(steps)


def _step(match: re.Match[str], text: str) -> str | int:
    if match[1] is not None:
        return match[1].rstrip()
    if match[2] is not None:
        if int(match[2]) > INDEX_MAX:
            raise ValueError(f"expected a place in an array of at most {INDEX_MAX}, got {match[2]} in {quoted(text)}")
        return int(match[2])
    try:
        name: str = json.loads(match[3])
    except ValueError:
        raise ValueError(f"expected a name in quotes, got {match[3]} in {quoted(text)}") from None
    return name


def format_path(path: FieldPath) -> str:
    """Return the text of a path, as ``parse_path`` reads it."""
    text = "$"
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _STEP.fullmatch(step) and not step.startswith((".", "[")) and step == step.strip():
            text += f".{step}"
        else:
            text += f"[{json.dumps(step, ensure_ascii=False)}]"
    return text.removeprefix("$.")
