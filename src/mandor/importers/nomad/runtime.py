"""Variables that Nomad fills in when a task starts (`${NOMAD_PORT_http}` …): known values, or Mandor's variables."""

import re
from dataclasses import dataclass, field
from typing import Any

from mandor.engines.base import variable
from mandor.importers.part import Part

_FOUND = re.compile(r"\$\{\s*(?P<name>[^}]*?)\s*\}")
_LATER = {
    "NOMAD_ALLOC_INDEX": "MANDOR_INDEX",
    "NOMAD_ALLOC_NAME": "MANDOR_INSTANCE",
    "NOMAD_ALLOC_ID": "MANDOR_INSTANCE",
    "NOMAD_SHORT_ALLOC_ID": "MANDOR_INSTANCE",
    "NOMAD_NAMESPACE": "MANDOR_NAMESPACE",
    "node.unique.name": "MANDOR_NODE",
    "attr.unique.hostname": "MANDOR_NODE",
    "HOSTNAME": "MANDOR_NODE",
}
"""Variables that the agent fills in, with their names in Mandor."""
_PORTS = (("NOMAD_HOST_PORT_", "HOST_PORT"), ("NOMAD_ALLOC_PORT_", "PORT"), ("NOMAD_PORT_", "PORT"))
_OF_NOMAD = ("NOMAD_", "attr.", "node.", "meta.", "env.")


@dataclass(slots=True)
class Runtime:
    """The environment of one task."""

    job: str
    group: str
    task: str
    folder: str
    """Prefix of the task's own folders: empty, or `/`."""
    meta: dict[str, str] = field(default_factory=dict)
    ports: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory: int | None = None
    shares: bool = False
    """A text names the shared folder of the group."""
    restarts: bool = True
    """A changed secret may restart the task: it is no batch."""

    def fill(self, text: str, part: Part, key: str, *, now: bool = False) -> str:
        """Return the text with known variables filled in, and later ones replaced by Mandor's (unless `now`); others
        are reported."""

        def one(match: re.Match[str]) -> str:
            found = self.known(match["name"], now=now)
            if found is None:
                if match["name"].startswith(_OF_NOMAD) or key != "data":
                    part.guess(key, f"{match[0]} is not filled in here", "see the variables MANDOR_… of a task")
                return match[0]
            return found

        return _FOUND.sub(one, text)

    def known(self, name: str, *, now: bool = False) -> str | None:
        """Return the replacement of a variable; None: unknown."""
        fixed = {
            "NOMAD_JOB_NAME": self.job,
            "NOMAD_JOB_ID": self.job,
            "NOMAD_JOB_PARENT_ID": self.job,
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
        self.shares = self.shares or name == "NOMAD_ALLOC_DIR"
        if name in fixed:
            return fixed[name]
        for prefix in ("NOMAD_META_", "meta.", "NOMAD_META."):
            if name.startswith(prefix):
                wanted = name.removeprefix(prefix)
                return next((value for key, value in self.meta.items() if key.lower() == wanted.lower()), None)
        for prefix, kind in _PORTS:
            if name.startswith(prefix):
                return self._port(name.removeprefix(prefix).lower(), kind, now=now)
        if now:
            return None
        if name.startswith(("NOMAD_IP_", "NOMAD_HOST_IP_")):
            return "${MANDOR_NODE_ADDRESS}"
        for prefix in ("NOMAD_ADDR_", "NOMAD_HOST_ADDR_"):
            port = self.known(f"NOMAD_HOST_PORT_{name.removeprefix(prefix)}") if name.startswith(prefix) else None
            if port is not None:
                return f"${{MANDOR_NODE_ADDRESS}}:{port}"
        return None if name not in _LATER else f"${{{_LATER[name]}}}"

    def _port(self, name: str, kind: str, *, now: bool) -> str | None:
        port = self.ports.get(name)
        if port is None:
            return None
        number = next((port[key] for key in ("port", "host") if isinstance(port.get(key), int)), None)
        if kind == "HOST_PORT":
            number = port["host"] if isinstance(port.get("host"), int) else None
        if number is not None:
            return str(number)
        return None if now else f"${{MANDOR_{kind}_{variable(name)}}}"
