"""The record of administrative acts: `weft hub acts`, and lines beside files of one machine."""
