"""The API over HTTP: handlers of the operations, whose declared parameters are checked before a handler runs."""
