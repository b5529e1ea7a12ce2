"""Rows into PostgreSQL: the address, the columns, the statements, and the sink that joins them."""
