"""Memory that the process has and no longer uses."""

from __future__ import annotations

import contextlib
import ctypes


def give_back_free_memory() -> None:
    """Return the allocator's free pages to the kernel, where the C library can: glibc has malloc_trim(3), musl not.

    glibc alone gives back only what lies at the end of its heap, so what a start has freed would stay resident for
    good: 3 to 5 MB where Python had to compile a node's modules, as at the first start of a release.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
