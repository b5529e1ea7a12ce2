"""Objects by key, with create-if-absent and compare-and-swap: the only state of the hub.

``open_store`` and ``probe`` are the entry points; ``ObjectStore`` (protocol.py) defines the promises of each call.
"""

from weft.storage.object_store.opening import open_store
from weft.storage.object_store.probe import probe
from weft.storage.object_store.protocol import (
    AccessDenied,
    AlreadyExists,
    Listed,
    NotFound,
    Object,
    ObjectStore,
    PreconditionFailed,
    StoreAway,
    StoreError,
    StoreUnfit,
    Written,
    replace,
)

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "Listed",
    "NotFound",
    "Object",
    "ObjectStore",
    "PreconditionFailed",
    "StoreAway",
    "StoreError",
    "StoreUnfit",
    "Written",
    "open_store",
    "probe",
    "replace",
]
