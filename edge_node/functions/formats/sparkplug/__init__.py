"""Sparkplug B: payloads of edge nodes and their devices, as in the Eclipse Sparkplug 3.0 specification.

``payload`` reads and writes payloads, ``births`` remembers the metrics of births, ``topic`` parses topics.
"""
