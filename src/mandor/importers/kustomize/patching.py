"""Patches of Kustomize: strategic merge, and JSON patches (RFC 6902)."""

import copy
from typing import Any

DELETE, REPLACE = "delete", "replace"
_DIRECTIVE = "$patch"
_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "ports": ("containerPort", "port"),
    "conditions": ("type",),
    "secrets": ("name",),
    "subjects": ("name",),
}
"""Keys by which Kubernetes merges the items of a list; other lists are replaced."""
DEPTH_MOST = 64


class PatchError(ValueError):
    """Raised for a patch that cannot be applied; the message is the reason."""


def merge_strategic(value: Any, patch: Any, depth: int = 0) -> Any:
    """Return the value with a strategic merge patch; None: the patch deletes it."""
    if depth > DEPTH_MOST:
        raise PatchError(f"the patch is nested deeper than {DEPTH_MOST} levels")
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    directive = patch.get(_DIRECTIVE)
    if directive == DELETE:
        return None
    if directive == REPLACE or not isinstance(value, dict):
        return _stripped({key: each for key, each in patch.items() if key != _DIRECTIVE})
    made = dict(value)
    for key, each in patch.items():
        if key.startswith("$"):
            if not key.startswith(("$patch", "$setElementOrder/", "$retainKeys")):
                raise PatchError(f"the directive {key[:40]} is not supported")
        elif each is None:
            made.pop(key, None)
        elif isinstance(each, list) and isinstance(made.get(key), list):
            made[key] = _merge_list(key, made[key], each, depth)
        else:
            merged = merge_strategic(made.get(key), each, depth + 1)
            if merged is None:
                made.pop(key, None)
            else:
                made[key] = merged
    return made


def _merge_list(key: str, held: list[Any], given: list[Any], depth: int) -> list[Any]:
    by = next((name for name in _KEYS.get(key, ()) if any(isinstance(e, dict) and name in e for e in given)), None)
    if by is None or any(isinstance(each, dict) and each.get(_DIRECTIVE) == REPLACE for each in given):
        return [_stripped(each) for each in given if not (isinstance(each, dict) and each.keys() == {_DIRECTIVE})]
    made, new = list(held), list[Any]()
    for each in given:
        if not isinstance(each, dict):
            new.append(copy.deepcopy(each))
            continue
        same = [at for at, item in enumerate(made) if _same(item, each, by)]
        if not same and each.get(_DIRECTIVE) != DELETE:
            new.append(_stripped(each))
        for at in reversed(same):
            merged = merge_strategic(made[at], each, depth + 1)
            made[at : at + 1] = [] if merged is None else [merged]
    return new + made  # Kustomize puts new items first.


def _same(item: Any, patch: dict[str, Any], by: str) -> bool:
    if not isinstance(item, dict) or item.get(by) != patch.get(by):
        return False
    return by not in {"port", "containerPort"} or item.get("protocol", "TCP") == patch.get("protocol", "TCP")


def _stripped(value: Any) -> Any:
    """Return a copy without directives and without keys that the patch deletes."""
    if isinstance(value, dict):
        return {key: _stripped(each) for key, each in value.items() if not key.startswith("$") and each is not None}
    return [_stripped(each) for each in value] if isinstance(value, list) else value


# JSON patches.


def apply_json(value: Any, operations: Any) -> Any:
    """Return the value with the operations of a JSON patch."""
    if not isinstance(operations, list):
        raise PatchError("a JSON patch is a list of operations")
    made = copy.deepcopy(value)
    for each in operations:
        if not isinstance(each, dict) or not isinstance(each.get("path"), str):
            raise PatchError("an operation has `op` and `path`")
        made = _operate(made, each)
    return made


def _operate(value: Any, operation: dict[str, Any]) -> Any:
    kind, path = operation.get("op"), _steps(operation["path"])
    if kind in {"add", "replace", "test"} and "value" not in operation:
        raise PatchError(f"`{kind}` of {operation['path'][:60]} has no `value`")
    if kind == "test":
        if _find(value, path) != operation["value"]:
            raise PatchError(f"{operation['path'][:60]} has another value than the test expects")
        return value
    if kind == "remove":
        return _removed(value, path)
    if kind == "replace":
        _find(value, path)
        return _added(value, path, operation["value"], replace=True)
    if kind == "add":
        return _added(value, path, operation["value"])
    if kind in {"move", "copy"}:
        source = _steps(str(operation.get("from") or ""))
        moved = copy.deepcopy(_find(value, source))
        return _added(_removed(value, source) if kind == "move" else value, path, moved)
    raise PatchError(f"{str(kind)[:20]!r} is none of add, remove, replace, move, copy, test")


def _steps(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise PatchError(f"the path {path[:60]!r} does not start with `/`")
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _index(step: str, items: list[Any], *, end: bool = False) -> int:
    if end and step == "-":
        return len(items)
    if not step.isdecimal() or len(step) > 9 or int(step) > len(items) - (not end):
        raise PatchError(f"there is no item {step[:20]!r}")
    return int(step)


def _find(value: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list):
            value = value[_index(step, value)]
        else:
            raise PatchError(f"there is no {step[:40]!r}")
    return value


def _added(value: Any, steps: list[str], given: Any, *, replace: bool = False) -> Any:
    given = copy.deepcopy(given)
    if not steps:
        return given
    holder = _find(value, steps[:-1])
    if isinstance(holder, dict):
        holder[steps[-1]] = given
    elif isinstance(holder, list) and replace:
        holder[_index(steps[-1], holder)] = given
    elif isinstance(holder, list):
        holder.insert(_index(steps[-1], holder, end=True), given)
    else:
        raise PatchError(f"there is no mapping or list for {steps[-1][:40]!r}")
    return value


def _removed(value: Any, steps: list[str]) -> Any:
    if not steps:
        raise PatchError("a whole object is not removed")
    _find(value, steps)
    holder = _find(value, steps[:-1])
    if isinstance(holder, dict):
        del holder[steps[-1]]
    else:
        del holder[_index(steps[-1], holder)]
    return value
