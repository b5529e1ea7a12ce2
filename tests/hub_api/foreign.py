"""A check for schemathesis, which loads this module: no answer holds anything of another tenant."""

from __future__ import annotations

import os
from typing import Any

import schemathesis

from tests.hub_api.answers import ALLOWED, FOREIGN


def nothing_foreign(_: Any, response: Any, case: Any) -> None:
    if os.environ.get(ALLOWED):
        return
    asked = str(case.as_transport_kwargs())
    if FOREIGN.encode() in response.content and FOREIGN not in asked:
        raise AssertionError(f"an answer to a token of another tenant: {response.content[:200]!r}")


schemathesis.check(nothing_foreign)
