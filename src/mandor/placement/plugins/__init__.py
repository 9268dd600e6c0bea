"""One file a plugin, named after it."""
