"""Stores for versioned objects: get, list, commit and watch, in memory, SQLite, etcd or over HTTP."""
