"""Python code of users, in a process of its own (docs/decisions/0076-user-code-in-its-own-process.md)."""
