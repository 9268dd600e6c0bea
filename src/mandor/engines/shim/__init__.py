"""The supervisor of one unit of the process engine: a separate program that outlives the agent.

It imports nothing of mandor outside this package, and little of the standard library: there is one such process for
each running task, so its size and start time matter.
"""
