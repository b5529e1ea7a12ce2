"""Running a node or hub as a service: signals, reload, log lines."""
