"""Ways to run instances on a node."""
