"""General-purpose modules without knowledge of clusters."""
