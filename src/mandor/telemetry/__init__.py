"""Traces of Mandor's own work: spans from an API call to the running instance, sent as OTLP."""
