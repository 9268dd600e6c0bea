"""The HTTP API: authenticate, validate, admit, commit, stream."""
