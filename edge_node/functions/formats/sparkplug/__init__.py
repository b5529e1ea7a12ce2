"""Sparkplug B: payloads of edge nodes and their devices, as the Eclipse Sparkplug 3.0 specification has them.

``payload`` reads and writes payloads, ``births`` remembers what births say of metrics, ``topic`` takes topics apart.
"""
