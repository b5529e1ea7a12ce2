"""The front door: the command line and the demo. Joins the applications, holds no logic of theirs."""
