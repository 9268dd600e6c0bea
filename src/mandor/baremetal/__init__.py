"""Placement of virtual machines on machines of an inventory: requests, their queue, and spare machines."""
