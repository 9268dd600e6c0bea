"""The web panel: static files, no build step; a client of the public API only."""
