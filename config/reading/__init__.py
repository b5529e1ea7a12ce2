"""Reader of edge.yaml and hub.yaml: YAML into sections, and an error for each mistake."""
