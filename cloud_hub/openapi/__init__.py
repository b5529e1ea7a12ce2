"""The document of the hub's API (OpenAPI 3.1), made from the types of its answers, and the types."""
