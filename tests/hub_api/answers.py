"""Real answers against the document: whatever a hub says, the type of the operation says too."""

from __future__ import annotations

from typing import Any

import msgspec

from weft.hub_api.operations import OPERATIONS

FOREIGN = "foreignmarker"
"""Text in every name and payload of a second tenant of the hub."""
ALLOWED = "WEFT_FOREIGN_ALLOWED"
"""Variable that is set for tokens that may read that tenant."""
BY_PATH = {each.key: each for each in OPERATIONS}


def check_answer(method: str, path: str, answer: Any) -> None:
    """Fail if an answer is not of the operation's type, or says more."""
    operation = BY_PATH[method, path]
    try:
        typed = msgspec.convert(answer, operation.as_json or operation.answer)
    except msgspec.ValidationError as error:
        raise AssertionError(f"{method} {path}: {error}: give its type in hub_api the field") from error
    reported = _sorted(answer), _sorted(msgspec.to_builtins(typed))
    assert reported[0] == reported[1], f"{method} {path} says more than {type(typed).__name__}: add the fields there"


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sorted(each) for each in value]
    return value
