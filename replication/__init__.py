"""Moving ranges of a log from here to there: link machines without I/O and the shell that drives them."""
