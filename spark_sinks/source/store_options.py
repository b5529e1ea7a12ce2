"""Options of the object store that a reader reads from its environment and sends to executors."""

from __future__ import annotations

from collections.abc import Mapping

GROUPS = (
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    ("AWS_REGION", "AWS_DEFAULT_REGION"),
    ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    ("AWS_ALLOW_HTTP",),
)
"""Variables that belong together: a key of one account with another's session token opens nothing."""
_PREFIX = "AWS_"


def with_environment(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options, completed from the environment.

    Executors run on other machines, and Python workers have the JVM's environment at its start. So the driver's
    variables are sent along, as Spark does for ``s3a://``. Roles of machines are not in the environment: each machine
    uses its own.

    Args:
        options: the given options, by object_store's names in capitals. A group with at least one given option is not
            completed.
        environment: the driver's.
    """
    found = dict(options)
    for group in GROUPS:
        if not any(name in options or name.removeprefix(_PREFIX) in options for name in group):
            found |= {name: environment[name] for name in group if environment.get(name)}
    return found
