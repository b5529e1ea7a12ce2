"""Settings, metrics and everything else that an operator sets or sees: typed models, the YAML loader, the metric
catalogue. Imports no other package of the project."""
