"""Loads sqlite-utils without the pandas and numpy that it would load where they are installed: 90 MB for nothing here.

To be imported before anything that imports sqlite-utils.
"""

from __future__ import annotations

import importlib
import sys

_NOT_NEEDED = ("numpy", "pandas")

_hidden = [name for name in _NOT_NEEDED if name not in sys.modules]
for _name in _hidden:
    sys.modules[_name] = None  # type: ignore[assignment] # an import of it raises ImportError
try:
    importlib.import_module("sqlite_utils")
finally:
    for _name in _hidden:
        del sys.modules[_name]
