"""Commands of ``weft edge`` that a running node does without: looking into one, renaming it, importing from one."""
