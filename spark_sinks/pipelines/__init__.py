"""Pipelines: YAML with SQL and Python steps, checked before they start, and the shipped pipelines.

The way of a pipeline: ``config.pipelines`` is its model; ``catalog`` finds it by file or name; ``check`` checks it
without reading a record; ``job`` makes a streaming query of it, or ``windows`` a query of complete windows if it has a
``window`` step; ``sinks`` makes the sink of the rows.

To add a shipped pipeline NAME:

1. Write ``shipped/NAME.yaml``. Its ``name`` is NAME; relative paths in it start at the user's working directory, and a
   user sets ``store``, the sink's path and the checkpoint by ``--set``. Comments name the parts to adapt.
2. Write its Python steps, if SQL is not enough, in ``shipped/NAME.py`` with underscores for dashes, and name them
   ``spark_sinks.pipelines.shipped.NAME:function``. A function takes a DataFrame and its options by keyword, and returns
   a DataFrame; with a parameter ``context`` it gets ``steps.Context``, which reads the stream's history. The check
   calls it with a DataFrame without rows. A step that collects rows, joins history or uses ``applyInPandas`` on the
   rows at hand has ``mode: batch``; a step with Spark's own state, such as `transformWithState`, is a step on the
   stream.
3. Keep ``_from`` in every row (``lineage.columns.merged`` in aggregates), and ``_shard`` and ``_offset`` of the record
   that caused it if rows are appended or sent to a stream. The check reports a lost column.
4. Test it in ``tests/spark_sinks/pipelines/shipped/``: killed and started again, and cut into other micro-batches, it
   gives the same rows as a batch computation over the whole stream.

``catalog.names`` lists the files in the folder; nothing is registered. ``weft spark run NAME --set ...`` then runs it,
and ``weft spark new NAME`` prints it to be changed.
"""
