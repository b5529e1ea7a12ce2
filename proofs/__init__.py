"""Proofs that nothing is missing: the audit of tables against the log, and the trace of a row."""
