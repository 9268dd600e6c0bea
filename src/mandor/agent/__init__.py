"""Makes one node match its orders."""
