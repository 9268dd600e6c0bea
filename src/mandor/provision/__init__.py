"""Machines on demand: whoever makes them, and gives them back."""
