"""The sentence of an error that ended a query. Spark wraps it into traces of Java and of Python."""

from __future__ import annotations

import re

from spark_sinks.pipelines.analysis import explained

_RAISED = re.compile(
    r"^\s*((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Refused|Corrupt|Interrupt)"
    r"|(?:spark_sinks|weft)\.(?:\w+\.)*[A-Z]\w*): (.+)$",
    re.MULTILINE,
)
"""An error of Python at the end of its trace. Names of Weft's error classes follow no pattern."""
_OURS = ("spark_sinks.", "weft.")
_STORE = {
    "weft.storage.object_store.errors.NotFound": "the store lacks {}",
    "weft.storage.object_store.errors.StoreError": "a store failed: {}",
}
"""Errors of a store that went away while a query ran."""
_NO_WORKER = "Python worker failed to connect back"
"""Message of Spark when a Python process that it started did not answer within 10 s; no setting changes this time."""


def sentence_of(error: BaseException) -> str:
    """Return the cause: the innermost error of Python, without its class if it is one of Weft's."""
    if _NO_WORKER in str(error):
        return (
            "a Python process of Spark took more than 10 s to start: this machine is overloaded. "
            "Run fewer jobs on it, and start the pipeline again. It goes on where it was"
        )
    raised = [(name, text.strip()) for name, text in _RAISED.findall(str(error)) if not name.startswith(_JAVA)]
    if not raised:
        return explained(error)
    name, text = raised[-1]
    if name in _STORE:
        happened = _STORE[name].format(text)
        return f"{happened}. See that it is there and has room, and start the pipeline again. It goes on where it was"
    return text if name.startswith(_OURS) else f"{name.rpartition('.')[2]}: {text}"


_JAVA = ("org.", "java.", "py4j.", "pyspark.", "scala.")
