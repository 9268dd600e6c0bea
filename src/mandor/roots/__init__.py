"""Composition roots: the only code that names concrete classes."""
