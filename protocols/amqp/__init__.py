"""AMQP 0-9-1 on the wire: frames, methods, content and field tables. No I/O.

`methods` reads and writes methods by the tables of ``pamqp``, which has every class and method of the specification.
`publish_run` is the hot path: runs of plain basic.publish, recognised by the bytes of their frames.
"""
