"""Programs of the node, each in a sandbox of its own."""

from mandor_bubblewrap.engine import BubblewrapEngine

__all__ = ["BubblewrapEngine"]
