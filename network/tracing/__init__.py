"""Traces of messages in OpenTelemetry's form: contexts by W3C Trace Context, spans, and their export.

``context`` and ``spans`` are plain values; only ``exporter`` knows the library, and imports it when it starts.
"""
