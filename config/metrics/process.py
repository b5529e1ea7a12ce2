"""Metrics of a node's process."""

from __future__ import annotations

from weft.config.metrics.metric import Metric

PROCESS_METRICS = (
    Metric("process_resident_memory_bytes", "gauge", "Resident memory of the process."),
    Metric("process_virtual_memory_bytes", "gauge", "Address space of the process."),
    Metric("process_cpu_seconds_total", "counter", "CPU time of the process."),
    Metric("process_open_fds", "gauge", "Open files and sockets of the process."),
    Metric("process_max_fds", "gauge", "Maximum number of open files and sockets of the process."),
    Metric("process_start_time_seconds", "gauge", "Start time of the process, in seconds since 1970."),
)
"""Metrics of both kinds of node, under the names that Prometheus's clients share. Read from ``/proc``."""
