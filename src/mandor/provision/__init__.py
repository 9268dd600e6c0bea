"""Machines on demand: provisioners create and delete them."""
