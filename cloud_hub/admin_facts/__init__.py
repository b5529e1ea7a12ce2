"""Facts of the cluster log that the hub knows: tokens, tenants, expectations of streams."""

from __future__ import annotations
