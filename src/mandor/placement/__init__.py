"""Deciding who goes where, and why: pure."""
