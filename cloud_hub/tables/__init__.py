"""Work of a hub on tables beyond the rows of the log: latest tables, retention, erasure.

``service`` runs it for the streams that the cluster log declares; ``newest`` says which row is a key's newest.
"""
