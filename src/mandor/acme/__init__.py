"""Certificates from an authority with ACME (RFC 8555)."""
