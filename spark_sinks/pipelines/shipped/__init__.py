"""The shipped pipelines: a YAML file each, and the functions of their Python steps."""
