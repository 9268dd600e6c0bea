"""Python clients of the HTTP API."""
