"""The record of administrative acts: lines of the cluster log, a list of the API, and a stream."""
