"""Metrics of queues, of an edge node that has some: totals, since a node may have 65,536 queues."""

from __future__ import annotations

from weft.config.metrics.metric import Metric

QUEUE_METRICS = (
    Metric("weft_edge_queues", "gauge", "Queues that clients of AMQP have declared."),
    Metric("weft_edge_queue_exchanges", "gauge", "Exchanges, those that are always there included."),
    Metric("weft_edge_queue_bindings", "gauge", "Bindings, as they count against queues.bindings."),
    Metric("weft_edge_queue_consumers", "gauge", "Consumers of queues."),
    Metric("weft_edge_queue_ready_messages", "gauge", "Messages in queues that wait for a consumer."),
    Metric("weft_edge_queue_unacknowledged_messages", "gauge", "Messages delivered and not acknowledged."),
    Metric("weft_edge_queue_bytes", "gauge", "Size of the messages in queues, as it counts against queues.size."),
    Metric("weft_edge_queue_bytes_max", "gauge", "Size that they may have: queues.size."),
    Metric(
        "weft_edge_queue_published_total", "counter", "Messages taken into queues; one in three queues counts three."
    ),
    Metric("weft_edge_queue_delivered_total", "counter", "Messages delivered from queues."),
    Metric("weft_edge_queue_redelivered_total", "counter", "Of these, messages flagged as redelivered."),
    Metric("weft_edge_queue_acknowledged_total", "counter", "Messages acknowledged by consumers."),
    Metric("weft_edge_queue_dead_lettered_total", "counter", "Messages sent on to where a queue has its dead letters."),
    Metric("weft_edge_queue_expired_total", "counter", "Messages whose time to live was over."),
    Metric("weft_edge_queue_dropped_total", "counter", "Messages that left a queue because it was too long."),
    Metric("weft_edge_queue_not_taken_total", "counter", "Messages that a full queue, or a full share, did not take."),
    Metric("weft_edge_queue_lost_total", "counter", "Messages in queues that the log had no more."),
)
