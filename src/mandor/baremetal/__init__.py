"""Machines for virtual machines: tasks, the queue they go through, and inventories of machines."""
