"""Conformance suites for authors of stores, engines and plugins."""
