"""Objects by key, with create-if-absent and compare-and-swap: the hub's only truth.

``open_store`` and ``probe`` are the way in; ``ObjectStore`` (protocol.py) says what each call promises.
"""

from storage.object_store.errors import AlreadyExists, NotFound, PreconditionFailed, StoreError, StoreUnfit
from storage.object_store.opening import open_store
from storage.object_store.probe import probe
from storage.object_store.protocol import Listed, Object, ObjectStore

__all__ = [
    "AlreadyExists",
    "Listed",
    "NotFound",
    "Object",
    "ObjectStore",
    "PreconditionFailed",
    "StoreError",
    "StoreUnfit",
    "open_store",
    "probe",
]
