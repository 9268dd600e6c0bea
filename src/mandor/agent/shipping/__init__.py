"""Log shipping: what instances and the agent write, to receivers elsewhere; buffered on disk, at least once."""
