"""Level: how far the tasks of a namespace are confined, with the names of Kubernetes' Pod Security Standards."""

from typing import Literal

Level = Literal["restricted", "baseline", "privileged"]
"""`restricted`: non-root, no host access, no added capabilities. `baseline`: an engine's usual confinement, without
known ways to gain privileges. `privileged`: no restrictions by the level."""
