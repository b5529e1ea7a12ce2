"""Garbage collection in Spark's Python workers."""

from __future__ import annotations

import gc
import sys
from functools import cache


@cache
def settle() -> None:
    """Exclude this Python worker's imports from garbage collection; in other processes do nothing.

    Spark's daemon calls ``gc.collect()`` after every task and every call of the driver. Arrow, deltalake and PySpark
    are hundreds of thousands of objects that live as long as the process. Scanning them took longer than reading a
    small task: a third of the processor time of a scan, and most of a micro-batch's.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.startswith("pyspark."):
        gc.collect()
        gc.freeze()
