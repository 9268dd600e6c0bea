"""Converts security contexts: user, group, capabilities, profiles."""

from typing import Any

from mandor.importers.base import filled
from mandor.importers.part import Part


def security(pod: Part, container: Part) -> dict[str, Any]:
    """Return the security of a container; its own context overrides that of the pod."""
    user = container.whole("runAsUser", pod.whole("runAsUser"))
    group = container.whole("runAsGroup", pod.whole("runAsGroup"))
    for part in (pod, container):
        _non_root(part, user)
        _profiles(part)
    if user is None and group is not None:
        (container if "runAsGroup" in container else pod).drop("runAsGroup", "a group needs a user beside it")
    container.drop("procMount", "the engine determines the /proc mount")
    return filled(
        user=f"{user}:{group}" if user is not None and group is not None else user,
        read_only_root=container.flag("readOnlyRootFilesystem") or None,
        no_new_privileges=not container.flag("allowPrivilegeEscalation", True) or None,
        **_powers(container),
    )


def _powers(container: Part) -> dict[str, Any]:
    capabilities = container.part("capabilities")
    added, dropped = ([_bare(each) for each in capabilities.texts(key)] for key in ("add", "drop"))
    if not container.flag("privileged"):
        return {"cap_add": added, "cap_drop": dropped}
    if added or dropped:
        container.drop("capabilities", "what is privileged has all powers")
    return {"privileged": True}


def _non_root(part: Part, user: int | None) -> None:
    if part.flag("runAsNonRoot") and not user:
        part.drop("runAsNonRoot", "who an image runs as is not checked", "give `runAsUser` a number that is not 0")


def _profiles(part: Part) -> None:
    """Drop profiles other than the engine's default."""
    for key, usual in (("seccompProfile", "RuntimeDefault"), ("appArmorProfile", "RuntimeDefault")):
        if part.peek(key) is not None and part.part(key).text("type") not in {usual, "Unconfined"}:
            part.drop(key, "the engine's own profile is used")
    for key in ("seLinuxOptions", "windowsOptions", "supplementalGroupsPolicy", "seLinuxChangePolicy"):
        part.drop(key, "has no counterpart")


def _bare(capability: str) -> str:
    return capability.upper().removeprefix("CAP_")
