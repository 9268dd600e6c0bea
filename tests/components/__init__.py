"""Real components for the tests: found, started, stopped, and never left behind."""
