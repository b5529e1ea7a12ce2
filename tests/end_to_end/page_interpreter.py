"""Runs the Python blocks of a page one after the other in one namespace, as a person at a prompt would.

Each line of the input is the name of a file to run; ``DONE`` answers it. ``TURN`` begins another page: nothing of those
before it is left but Spark.
"""

from __future__ import annotations

import sys

DONE = "-- done --"
TURN = "-- turn --"


def new_namespace() -> dict[str, object]:
    return {"__name__": "__main__"}


def stop_queries() -> None:
    sql = sys.modules.get("pyspark.sql")
    spark = sql.SparkSession.getActiveSession() if sql else None
    for query in spark.streams.active if spark else ():
        query.stop()


if __name__ == "__main__":
    namespace = new_namespace()
    for line in sys.stdin:
        if line.strip() == TURN:
            stop_queries()
            namespace = new_namespace()
        else:
            with open(line.strip()) as file:
                exec(compile(file.read(), line.strip(), "exec"), namespace)
        print(DONE, flush=True)
