"""The process engine: plain programs of the node itself, each under a small supervisor that outlives the agent."""

from mandor.engines.process.engine import ProcessEngine

__all__ = ["ProcessEngine"]
