"""Quality rules of a table's rows: their declarations, the checks while rows are made, and the counts beside rows."""
