"""Mandor places and runs any kind of work on any kind of engine."""

__version__ = "0.1.0"
