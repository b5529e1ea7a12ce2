"""Options of the object store that a reader reads from its environment and sends to executors."""

from __future__ import annotations

from collections.abc import Mapping

GROUPS = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        ("AWS_REGION", "AWS_DEFAULT_REGION"),
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        ("AWS_ALLOW_HTTP",),
    ),
    "gs": (
        ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("GOOGLE_BASE_URL",),
        ("GOOGLE_ALLOW_HTTP",),
    ),
    "az": (
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY"),
        ("AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID"),
        ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        ("AZURE_ALLOW_HTTP",),
    ),
}
"""Scheme of a store's URI -> variables that belong together: a key of one account with another's session token opens
nothing."""
_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}


def with_environment(options: Mapping[str, str], environment: Mapping[str, str], uri: str) -> dict[str, str]:
    """Return the options, completed from the environment for a store in a bucket.

    Executors run on other machines, and Python workers have the JVM's environment at its start. So the driver's
    variables are sent along, as Spark does for ``s3a://``. Roles of machines are not in the environment: each machine
    uses its own. A variable that names a file is sent as it is: the file has to be on each machine.

    Args:
        options: the given options, by object_store's names in capitals. A group with at least one given option is not
            completed.
        environment: the driver's.
        uri: of the store.
    """
    found, scheme = dict(options), uri.partition("://")[0]
    for group in GROUPS.get(scheme, ()) if "://" in uri else ():
        if not any(name in options or name.removeprefix(_PREFIXES[scheme]) in options for name in group):
            found |= {name: environment[name] for name in group if environment.get(name)}
    return found
