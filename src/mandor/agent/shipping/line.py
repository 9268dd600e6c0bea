"""One log line with the labels that all sinks use: pure."""

from collections.abc import Mapping

from msgspec import Struct

TEXT_MOST = 256 * 1024
"""Largest number of bytes of a line; a longer one is cut and marked."""
SEVERITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Syslog severities."""


class Line(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """A log line of a task or of the agent."""

    at: float
    text: str
    node: str
    stream: str
    """`stdout` or `stderr` of a task, or `agent` for the agent's own logs."""
    namespace: str = ""
    workload: str = ""
    instance: str = ""
    task: str = ""
    level: str = ""
    """Level of a line of the agent; empty for tasks."""
    facts: dict[str, str] = {}
    """Further fields of a line of the agent."""

    @property
    def nanoseconds(self) -> int:
        return round(self.at * 1e6) * 1000

    @property
    def labels(self) -> dict[str, str]:
        """The labels that have a value."""
        found = {name: getattr(self, name) for name in ("namespace", "workload", "instance", "task", "node", "stream")}
        return {name: value for name, value in found.items() if value}

    @property
    def severity(self) -> str:
        """The level; `error` for the standard error stream of a task, as in Docker's syslog driver."""
        return self.level or ("error" if self.stream == "stderr" else "info")

    @property
    def record(self) -> dict[str, str]:
        """All fields except the time, in one mapping."""
        return {**self.facts, **self.labels, **({"level": self.level} if self.level else {}), "message": self.text}


def clean_text(text: bytes) -> str:
    """Decode a line and cut it to `TEXT_MOST`."""
    shown = text[:TEXT_MOST].decode("utf-8", "replace")
    return shown if len(text) <= TEXT_MOST else f"{shown}… ({len(text) - TEXT_MOST} more bytes)"


def flat(facts: Mapping[str, object]) -> dict[str, str]:
    return {str(name): str(value) for name, value in facts.items()}
