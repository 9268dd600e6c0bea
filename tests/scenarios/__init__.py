"""Clusters written as text or in a few lines: what happens, and what must come of it."""
