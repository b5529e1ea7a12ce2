"""The front door: the command line and the demo. It joins the applications and holds no logic of theirs."""
