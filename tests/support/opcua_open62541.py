"""A server of open62541 whose variables change, and which writes down each value that it had.

``python opcua_open62541.py PORT LOG FOLDER OPTIONS``: FOLDER has the packages `o6`, which is open62541 for Python, and
`numpy`. Without a licence it ends by itself after ten minutes, which is longer than a test has it run.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from datetime import UTC, datetime


def main() -> None:
    port, log, folder, given = sys.argv[1:]
    sys.path.insert(0, folder)
    o6, options = importlib.import_module("o6"), json.loads(given)

    class Access(o6.AccessControl):  # type: ignore[misc, name-defined]
        """Hands the subscription of an anonymous client over to another one, which the server's own does not."""

        def allowTransferSubscription(self, *_: object) -> bool:
            return bool(options["hands_over"])

    server = o6.Server(port=int(port), applicationUri="urn:example:press", accessControl=Access())
    press = server.addObject("Press", server.objectsNode, nodeId="ns=1;s=Press")
    names = [f"v{number}" for number in range(options["variables"])]
    variables = [server.addVariable(name, press, o6.UInt32(0), nodeId=f"ns=1;s={name}") for name in names]
    server.start()
    print("ready", flush=True)
    number = options["first"]
    with open(log, "a", buffering=1, encoding="ascii") as out:
        while True:
            for name, variable in zip(names, variables, strict=True):
                now = datetime.now(UTC)
                value = o6.DataValue(o6.UInt32(number))
                value.sourceTimestamp = o6.DateTime(now)
                out.write(f"{name} {number} {now.isoformat(timespec='microseconds')}\n")
                server.write(variable, value)
            number += 1
            time.sleep(options["every_s"])


if __name__ == "__main__":
    main()
