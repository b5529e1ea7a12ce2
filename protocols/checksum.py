"""CRC-32C (Castagnoli), by the compiled part of the library ``crc32c`` alone.

The library's package imports its command line and its version with it, and so argparse and ``importlib.metadata``: they
take 1.2 MiB of an idle edge node, and 20 ms of its start on a desktop.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any


def _compiled() -> Any:
    package = find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    found = None if places is None else PathFinder.find_spec("crc32c._crc32c", places)
    if found is None or found.loader is None:
        return importlib.import_module("crc32c")  # a release of other parts, or an error that says what is missing
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


crc32c: Callable[..., int] = _compiled().crc32c
"""``crc32c(data, before=0)``: the checksum of bytes, behind those whose checksum is ``before``."""
