"""The log as one Delta table per stream, with each record exactly once.

``service`` runs it in a hub; ``tierer`` moves rows of one stream; ``maintenance`` keeps its table small.
The only package of the hub that imports deltalake.
"""
