"""Windows over rows: which rows belong together, until when they wait, and what is made of them."""
