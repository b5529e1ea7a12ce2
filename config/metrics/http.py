"""Metrics of an edge node's HTTP listeners."""

from __future__ import annotations

from weft.config.metrics.metric import Metric

HTTP_METRICS = (
    Metric("weft_edge_http_requests_total", "counter", "HTTP requests handled."),
    Metric("weft_edge_http_messages_total", "counter", "Messages in HTTP requests, stored or not."),
    Metric("weft_edge_http_refused_total", "counter", "HTTP requests answered with 400 to 499, without 429."),
    Metric(
        "weft_edge_http_throttled_total",
        "counter",
        "HTTP requests answered with 429: too much waited for the disk, or too many clients read events.",
    ),
    Metric("weft_edge_http_errors_total", "counter", "HTTP requests answered with a status from 500 on."),
    Metric("weft_edge_http_timeouts_total", "counter", "HTTP connections closed because a request came too slowly."),
    Metric(
        "weft_edge_http_repeated_total",
        "counter",
        "HTTP requests recognised by their idempotency key: their messages were stored before.",
    ),
    Metric(
        "weft_edge_http_misfits_refused_total",
        "counter",
        "HTTP requests refused because a message does not fit the stream: its topic, or no JSON.",
    ),
    Metric(
        "weft_edge_http_misfits_taken_total",
        "counter",
        "Messages taken by HTTP although they do not fit the stream (`misfits: take`).",
    ),
    Metric("weft_edge_http_keys", "gauge", "Idempotency keys that are remembered."),
    Metric(
        "weft_edge_http_keys_forgotten_total",
        "counter",
        "Idempotency keys forgotten before their time, because there were too many.",
    ),
    Metric("weft_edge_http_readers", "gauge", "HTTP clients that read events."),
    Metric("weft_edge_http_events_total", "counter", "Events sent to HTTP clients."),
    Metric("weft_edge_http_events_dropped_total", "counter", "Live messages that an HTTP client was too slow for."),
)
