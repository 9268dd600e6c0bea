"""Controllers: compare the wanted state of objects with the current state, and write the difference."""
