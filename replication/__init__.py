"""Replication of ranges of a log: link machines without I/O, and the shell that drives them.

``Sender`` (``sender.py``) is the machine of an edge, ``Receiver`` that of a hub; ``runner`` owns sockets and clocks and
drives both. The protocol is docs/reference/formats/link.md. When a sender sends what is decided by its parts:

- ``SenderLanes`` and ``SenderLane`` (``sender_lanes.py``) know what the hub has of each lane. They
  choose the lane whose turn it is and the number to read next, tell gaps, and offer a closed lane again after
  ``lane_retry``.
- ``Outbox`` (``sender.py``) holds the batches of one read. It merges small neighbours up to ``merge_bytes_max``, cuts
  messages, and asks for more of the log once nothing waits for the window.
- ``SendWindow`` (``flow_control.py``) says how many bytes may be on the way without an ACK: some seconds' worth of what
  the hub acknowledges, and no more than both ends allow (``window_bytes``).
- ``MarkSchedule`` (``sender_lanes.py``) says when marks are due: soon after a lane's data, and every ``mark_interval``
  for all lanes together. At the end of an edge it makes them last words.
- ``AckPatience`` (``liveness.py``) says how long a hub may take data and acknowledge none (``ack_timeout``).
- ``BeatWatch`` (``liveness.py``) notices in seconds that a hub which has data says nothing at all (``beat_timeout``).
- ``CanaryWatch`` (``liveness.py``) knows what was last proven to be durable at the hub, and asks with a PING where
  nothing was for a while.
- ``Liveness`` (``liveness.py``) sends PING (``ping_interval``), notices a silent peer (``silence``), and measures its
  clock.

``Sender.data_to_send`` puts the next message together, in this order: HELLO, PING and PONG, openings of lanes, gaps,
data, marks, and a canary. ``Sender.deadline`` is the earliest time at which one of the parts has something to do
without news of log or peer; the owner calls ``handle_timeout`` then. What a part wants to do by itself has to be in
both.
A lane may continue what the hub has of it instead of what its log has (``OfferedLane.continues_hub``): so does a Spark
task, which drives a ``Sender`` over blocking sockets (``spark_sinks/sinks/stream/link.py``). ``attempts`` has what both
clients need between two connections: the next URL, waits, and the sentences for refusals.

``tests/replication/model.py`` has a log, a hub and a network in memory for tests of both machines.
"""
