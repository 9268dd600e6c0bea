"""The HTTP API, from Python."""
