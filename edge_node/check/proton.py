"""Check for the engine of AMQP 1.0: it has no wheels, so a node may run without it."""

from __future__ import annotations

from importlib.util import find_spec

MISSING = (
    "AMQP 1.0 needs python-qpid-proton, which is not installed. Install weft-fabric[amqp1]; it is built from source, "
    "with a C compiler, the headers of Python and, for TLS in its own clients, of OpenSSL"
)


def is_installed() -> bool:
    """Return whether AMQP 1.0 can be served. The engine is not loaded for that."""
    return find_spec("proton") is not None and find_spec("cproton") is not None
