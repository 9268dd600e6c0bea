"""Level: the security level of a namespace, named as in Kubernetes' Pod Security Standards."""

from typing import Literal

Level = Literal["restricted", "baseline", "privileged"]
"""Security level. `restricted`: non-root, no host access, no added capabilities. `baseline`: an engine's default
confinement, without known ways to gain privileges. `privileged`: no restrictions by the level.
"""
