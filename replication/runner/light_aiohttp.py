"""Import of aiohttp without what links do not use of it, which saves an edge node 3 MiB and 40 ms.

`weft.replication.runner` imports this module before any that imports aiohttp.
"""

from __future__ import annotations

import importlib
import os
import sys

_NO_AUTHORITIES = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
"""Variables of OpenSSL that name the certificate authorities.

While aiohttp is imported, it reads all authorities of the system twice, into contexts that links do not use:
``run_link`` makes one of its own, only where it needs TLS. Without authorities aiohttp's contexts trust no server.
"""
_COMPILED_LIST = "frozenlist._frozenlist"
"""Name of the only library of an edge that needs the C++ runtime, of 1 MiB. The same class in Python serves as well:
its lists are short."""


def _import_aiohttp() -> None:
    saved = {name: os.environ.get(name) for name in _NO_AUTHORITIES}
    hides = "frozenlist" not in sys.modules
    os.environ.update(_NO_AUTHORITIES)
    if hides:
        sys.modules[_COMPILED_LIST] = None  # type: ignore[assignment] # an import of it raises ImportError
    try:
        importlib.import_module("aiohttp")
    finally:
        if hides:
            del sys.modules[_COMPILED_LIST]
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


if "aiohttp" not in sys.modules:
    _import_aiohttp()
