"""Import of sqlite-utils without pandas and numpy, which it would load where they are installed (90 MB without use
here), and without dateutil.

Import this module before any that imports sqlite-utils.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_NOT_NEEDED = ("numpy", "pandas")

# Only the recipes of its command line parse dates.
_dateutil = ModuleType("dateutil")
_dateutil.parser = None  # type: ignore[attr-defined]
_stands = "dateutil" not in sys.modules and "sqlite_utils" not in sys.modules
_hidden = [name for name in _NOT_NEEDED if name not in sys.modules]
for _name in _hidden:
    sys.modules[_name] = None  # type: ignore[assignment] # an import of it raises ImportError
if _stands:
    sys.modules["dateutil"] = _dateutil
try:
    importlib.import_module("sqlite_utils")
finally:
    for _name in _hidden:
        del sys.modules[_name]
    if _stands:
        del sys.modules["dateutil"]
