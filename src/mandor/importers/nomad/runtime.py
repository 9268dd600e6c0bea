"""What Nomad fills in when a task starts (`${NOMAD_PORT_http}` …), as far as it is known before."""

import re
from dataclasses import dataclass, field
from typing import Any

from mandor.importers.part import Part

_FOUND = re.compile(r"\$\{\s*(?P<name>[^}]*?)\s*\}")


@dataclass(slots=True)
class Runtime:
    """The surroundings of one task."""

    job: str
    group: str
    task: str
    folder: str
    """Where the task finds its own folders: empty, or `/`."""
    meta: dict[str, str] = field(default_factory=dict)
    ports: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory: int | None = None

    def fill(self, text: str, part: Part, key: str) -> str:
        """With everything filled in that is known; the rest stays, and is told."""

        def one(match: re.Match[str]) -> str:
            found = self._known(match["name"])
            if found is None:
                hint = _HINTS.get(match["name"].partition("_")[0], "see the variables MANDOR_… of a task")
                part.guess(key, f"{match[0]} is not filled in here", self._hint(match["name"]) or hint)
                return match[0]
            return found

        return _FOUND.sub(one, text)

    def _known(self, name: str) -> str | None:
        fixed = {
            "NOMAD_JOB_NAME": self.job,
            "NOMAD_JOB_ID": self.job,
            "NOMAD_GROUP_NAME": self.group,
            "NOMAD_TASK_NAME": self.task,
            "JOB": self.job,
            "TASKGROUP": self.group,
            "TASK": self.task,
            "BASE": f"{self.job}-{self.group}-{self.task}",
            "NOMAD_REGION": "global",
            "NOMAD_TASK_DIR": f"{self.folder}local",
            "NOMAD_SECRETS_DIR": f"{self.folder}secrets",
            "NOMAD_ALLOC_DIR": f"{self.folder}alloc",
            "NOMAD_MEMORY_LIMIT": None if self.memory is None else str(self.memory),
        }
        if name in fixed:
            return fixed[name]
        for prefix in ("NOMAD_META_", "meta.", "NOMAD_META."):
            if name.startswith(prefix):
                wanted = name.removeprefix(prefix)
                return next((value for key, value in self.meta.items() if key.lower() == wanted.lower()), None)
        for prefix, which in (("NOMAD_PORT_", ("port", "host")), ("NOMAD_HOST_PORT_", ("host",))):
            if name.startswith(prefix):
                port = self.ports.get(name.removeprefix(prefix).lower(), {})
                return next((str(port[each]) for each in which if isinstance(port.get(each), int)), None)
        return None

    def _hint(self, name: str) -> str:
        if name.startswith(("NOMAD_PORT_", "NOMAD_HOST_PORT_")):
            return f"the task has MANDOR_{name.removeprefix('NOMAD_').upper()}"
        return {"NOMAD_ALLOC_INDEX": "the task has MANDOR_INDEX", "node.unique.name": "the task has MANDOR_NODE"}.get(
            name, ""
        )


_HINTS = {"attr.": "the node's facts are not handed to tasks"}
