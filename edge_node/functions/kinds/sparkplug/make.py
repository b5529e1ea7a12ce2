"""The function ``sparkplug``, created where a configuration has it: most nodes do not need protobuf, some 8 MB."""

from __future__ import annotations

from weft.config.functions.sparkplug import Sparkplug
from weft.edge_node.functions.contract import Context, Function


def make_sparkplug(settings: Sparkplug, context: Context) -> Function:
    """Return a new function.

    Raises:
        ValueError: the library that it needs is not installed.
    """
    try:
        from weft.edge_node.functions.kinds.sparkplug.function import SparkplugFunction
    except ImportError:
        raise ValueError("it needs a library that is not installed: pip install 'weft-fabric[sparkplug]'") from None
    return SparkplugFunction(settings, context)
