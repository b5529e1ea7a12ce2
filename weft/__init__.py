"""The front door: the command line. It joins the applications and holds no logic of theirs."""
