"""Audits: lanes, log and table compared."""
