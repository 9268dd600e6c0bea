"""The environment of a container: values, references, and `$(NAME)` wherever Kubernetes replaces it."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from mandor.importers.kubernetes.amounts import amount
from mandor.importers.kubernetes.shelf import Owner, Shelf
from mandor.importers.part import Part

FIELDS = {
    "metadata.name": "${MANDOR_INSTANCE}",
    "metadata.namespace": "${MANDOR_NAMESPACE}",
    "spec.nodeName": "${MANDOR_NODE}",
}
"""What a pod can ask about itself that is known only when it starts; the agent fills it in."""
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_REFERENCE = re.compile(r"\$(\$|\(([-A-Za-z0-9._]+)\))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
NO_SECRETS = "secrets are not supported yet"
SECRET_HINT = "put the value under `env` yourself, if whoever may read the workload may read it"  # noqa: S105


def environment(container: Part, owner: Owner, shelf: Shelf) -> dict[str, str]:
    found = _from_maps(container, owner, shelf)
    for each in container.parts("env"):
        name = each.text("name") or ""
        value = each.text("value", "") if each.peek("valueFrom") is None else _value_from(each, container, owner, shelf)
        if value is None:
            each.drop("name", f"{name} has no value here")
        elif not _NAME.fullmatch(name):
            each.drop("name", f"{name[:40]!r} is not the name of an environment variable here")
        else:
            found[name] = expanded(value, found)
    return found


def expanded(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` is the variable, `$$` one `$`; a name that is not known stays as it is."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else env.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def _from_maps(container: Part, owner: Owner, shelf: Shelf) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in container.parts("envFrom"):
        prefix = each.text("prefix", "")
        each.drop("secretRef", NO_SECRETS, SECRET_HINT)
        if "configMapRef" not in each:
            continue
        reference = each.part("configMapRef")
        name = reference.text("name") or ""
        reference.flag("optional")
        data = shelf.config(owner.namespace, name)
        if data is None:
            reference.drop("name", f"the ConfigMap {name} is not among these files")
            continue
        for key, value in data.items():
            if _NAME.fullmatch(f"{prefix}{key}"):
                found[f"{prefix}{key}"] = value
            else:
                reference.guess("name", f"{key[:40]!r} is not the name of an environment variable, and is left out")
    return found


def _value_from(each: Part, container: Part, owner: Owner, shelf: Shelf) -> str | None:
    source = each.part("valueFrom")
    source.drop("secretKeyRef", NO_SECRETS, SECRET_HINT)
    source.drop("fileKeyRef", "a variable is not read from a file")
    if "configMapKeyRef" in source:
        return _config_key(source.part("configMapKeyRef"), owner, shelf)
    if "fieldRef" in source:
        return field_value(source.part("fieldRef"), owner)
    if "resourceFieldRef" in source:
        return resource_value(source.part("resourceFieldRef"), container, owner)
    return None


def _config_key(reference: Part, owner: Owner, shelf: Shelf) -> str | None:
    name, key = reference.text("name") or "", reference.text("key") or ""
    reference.flag("optional")
    data = shelf.config(owner.namespace, name)
    if data is None or key not in data:
        why = f"the ConfigMap {name} is not among these files" if data is None else f"the ConfigMap {name} has no {key}"
        reference.drop("name", why)
        return None
    return data[key]


def field_value(reference: Part, owner: Owner) -> str | None:
    reference.text("apiVersion")
    path = reference.text("fieldPath") or ""
    if path in FIELDS:
        return FIELDS[path]
    if path == "spec.serviceAccountName":
        return owner.account
    keyed = _KEYED.fullmatch(path)
    if keyed is not None:
        return (owner.labels if keyed[1] == "labels" else owner.annotations).get(keyed[2], "")
    reference.drop("fieldPath", f"a task is not told its {path}")
    return None


def resource_value(reference: Part, container: Part, owner: Owner) -> str | None:
    """A request or limit that the file itself tells, in units of the divisor, rounded up."""
    name, asked = reference.text("containerName"), reference.text("resource") or ""
    divisor = reference.text("divisor") or "1"
    source: Mapping[str, Any] = owner.containers.get(name, {}) if name else container.source
    side, _, kind = asked.partition(".")
    given = _given(source, side, kind)
    if given is None and side == "requests":
        given = _given(source, "limits", kind)
    try:
        one, unit = amount(str(given)), amount(divisor)
    except ValueError:
        reference.drop("resource", f"{asked} is not told in this file")
        return None
    return str(int(-(-one // (unit or Fraction(1)))))


def _given(container: Mapping[str, Any], side: str, kind: str) -> Any:
    amounts = container.get("resources")
    found = amounts.get(side) if isinstance(amounts, dict) else None
    return found.get(kind) if isinstance(found, dict) else None
