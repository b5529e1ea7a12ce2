"""Commands about edge functions: test one, and compute a derived stream again."""
