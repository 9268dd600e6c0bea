"""The name server of a node: a process of its own that outlives the agent."""
