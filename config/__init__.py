"""What an operator may set and see: typed models, the YAML loader, the metric catalogue. Imports nothing of ours."""
