"""Commands of `weft hub` that work on the store, whether nodes run or not."""
