"""moto's server, made to keep its conditions under a race: ``python -m tests.storage.object_store.moto_server``.

moto looks at If-Match, and then writes. Now and then another of its threads writes in between, which the hub's probe
finds and refuses. So one change is made after the other here, as Amazon S3 does it; a change begins once all of its
body has come, so that the others do not wait for a client that sends half of one.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]
CHANGES = ("PUT", "POST", "DELETE")


def one_change_at_a_time(application: Application) -> Application:
    """Return the application with one change of an object after the other."""
    lock = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in CHANGES:
            return application(environ, start_response)
        size = None if environ.get("wsgi.input_terminated") else int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size))
        with lock:
            return list(application(environ, start_response))

    return answer


if __name__ == "__main__":
    application = one_change_at_a_time(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
