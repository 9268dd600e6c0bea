"""The supervisor of one unit of the process engine: a program of its own that outlives the agent.

It imports nothing of mandor outside this package, and of the standard library as little as it can: there is one
such process for each running task, so its size and its start are paid for every time.
"""
