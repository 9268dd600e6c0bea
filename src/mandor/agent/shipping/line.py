"""One line on its way to a receiver, with the labels everybody uses; pure."""

from collections.abc import Mapping

from msgspec import Struct

TEXT_MOST = 256 * 1024
"""A longer line is cut, and says so."""
SEVERITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""As syslog numbers them."""


class Line(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    at: float
    text: str
    node: str
    stream: str
    """`stdout` or `stderr` of a task; `agent`: the agent's own."""
    namespace: str = ""
    workload: str = ""
    instance: str = ""
    task: str = ""
    level: str = ""
    """Of the agent's own."""
    facts: dict[str, str] = {}
    """What else the agent says, by name."""

    @property
    def nanoseconds(self) -> int:
        return round(self.at * 1e6) * 1000

    @property
    def labels(self) -> dict[str, str]:
        """Those that have a value."""
        found = {name: getattr(self, name) for name in ("namespace", "workload", "instance", "task", "node", "stream")}
        return {name: value for name, value in found.items() if value}

    @property
    def severity(self) -> str:
        """Its level; what a task prints as an error is one, as Docker's syslog driver has it."""
        return self.level or ("error" if self.stream == "stderr" else "info")

    @property
    def record(self) -> dict[str, str]:
        """All of it but the time, flat."""
        return {**self.facts, **self.labels, **({"level": self.level} if self.level else {}), "message": self.text}


def clean_text(text: bytes) -> str:
    """As text that fits."""
    shown = text[:TEXT_MOST].decode("utf-8", "replace")
    return shown if len(text) <= TEXT_MOST else f"{shown}… ({len(text) - TEXT_MOST} more bytes)"


def flat(facts: Mapping[str, object]) -> dict[str, str]:
    return {str(name): str(value) for name, value in facts.items()}
