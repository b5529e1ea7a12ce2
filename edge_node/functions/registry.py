"""Kinds of functions by the name that a configuration gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.edge_node.functions.contract import Context, Function
from weft.edge_node.functions.kinds.alert import AlertFunction
from weft.edge_node.functions.kinds.changes import ChangesFunction
from weft.edge_node.functions.kinds.deadband import DeadbandFunction
from weft.edge_node.functions.kinds.dedupe import DedupeFunction
from weft.edge_node.functions.kinds.enrich import Enrich
from weft.edge_node.functions.kinds.python.function import Python
from weft.edge_node.functions.kinds.redact import make_redact
from weft.edge_node.functions.kinds.route import RouteFunction
from weft.edge_node.functions.kinds.sample import SampleFunction
from weft.edge_node.functions.kinds.select import Set, make_select
from weft.edge_node.functions.kinds.sparkplug.make import make_sparkplug
from weft.edge_node.functions.kinds.sql import SqlFunction
from weft.edge_node.functions.kinds.swinging_door import SwingingDoorFunction
from weft.edge_node.functions.kinds.where import Where
from weft.edge_node.functions.kinds.window import WindowFunction

Make = Callable[[Any, Context], Function]
"""(settings, context) -> a new function. Raises ``ValueError``, with a sentence, for settings that cannot work."""

KINDS: dict[str, Make] = {
    "python": Python,
    "where": Where,
    "set": Set,
    "select": make_select,
    "redact": make_redact,
    "route": RouteFunction,
    "sample": SampleFunction,
    "deadband": DeadbandFunction,
    "swinging_door": SwingingDoorFunction,
    "changes": ChangesFunction,
    "dedupe": DedupeFunction,
    "enrich": Enrich,
    "alert": AlertFunction,
    "sparkplug": make_sparkplug,
    "window": WindowFunction,
    "sql": SqlFunction,
}
"""Field of ``config.functions.FunctionStep`` -> factory of the function."""
