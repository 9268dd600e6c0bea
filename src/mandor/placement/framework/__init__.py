"""What a plugin author sees: the points, the ask, the nodes as columns, the state of a cycle."""
