"""Keep what is so close to what is wanted."""
