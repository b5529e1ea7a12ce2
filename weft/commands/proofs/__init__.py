"""Commands that prove what a hub has: ``weft audit`` and ``weft trace``."""
