"""Scheduling framework: points, placement requests, nodes as columns, and the state of a cycle."""
