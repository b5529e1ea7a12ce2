"""The metrics and labels that an expression of Prometheus names. No parser: a real one judges them as well."""

from __future__ import annotations

import re

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_METRIC = re.compile(r"\b(?:weft|process)_[a-z0-9_]+\b|\bup\b")
_SELECTED = re.compile(r"\{([^}]*)\}")
_GROUPED = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right) ?\(([^)]*)\)")
_LABEL = re.compile(r"\w+")


def metrics_in(expression: str) -> set[str]:
    """Names of the series that the expression selects."""
    return set(_METRIC.findall(_STRINGS.sub('""', expression)))


def labels_in(expression: str) -> set[str]:
    """Labels that it selects, groups or joins by."""
    bare = _STRINGS.sub('""', expression)
    selected = [re.split("[!=]", each)[0] for part in _SELECTED.findall(bare) for each in part.split(",")]
    grouped = [label for part in _GROUPED.findall(bare) for label in _LABEL.findall(part)]
    return {label.strip() for label in (*selected, *grouped) if label.strip()}
