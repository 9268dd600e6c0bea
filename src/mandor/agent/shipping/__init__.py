"""Log shipping: sends the logs of tasks and of the agent to receivers; buffered on disk, at-least-once delivery."""
