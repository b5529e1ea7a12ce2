"""Commands that prove the contents of a hub: ``weft audit`` and ``weft trace``."""
