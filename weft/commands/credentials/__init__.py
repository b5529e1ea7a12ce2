"""Commands on files of tokens and users."""
