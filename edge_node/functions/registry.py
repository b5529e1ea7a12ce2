"""Kinds of functions by the name that a configuration gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.edge_node.functions.contract import Context, Function
from weft.edge_node.functions.kinds.python.function import Python

Make = Callable[[Any, Context], Function]
"""(settings, context) -> a new function. Raises ``ValueError``, with a sentence, for settings that cannot work."""

KINDS: dict[str, Make] = {
    "python": Python,
}
"""Field of ``config.functions.FunctionStep`` -> what makes the function."""
