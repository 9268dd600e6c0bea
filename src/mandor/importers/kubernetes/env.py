"""The environment of a container: values, references, and `$(NAME)` where Kubernetes replaces it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from mandor.importers.kubernetes.amounts import amount
from mandor.importers.kubernetes.secret import secret_key, secret_variables
from mandor.importers.kubernetes.shelf import Owner, ReferencedObjects
from mandor.importers.part import Part

FIELDS = {
    "metadata.name": "${MANDOR_INSTANCE}",
    "metadata.namespace": "${MANDOR_NAMESPACE}",
    "spec.nodeName": "${MANDOR_NODE}",
    "status.hostIP": "${MANDOR_NODE_ADDRESS}",
}
"""Fields of a pod that are known only when it starts; the agent fills them in."""
_OF_CONTROLLERS = {
    "apps.kubernetes.io/pod-index": "${MANDOR_INDEX}",
    "batch.kubernetes.io/job-completion-index": "${MANDOR_INDEX}",
    "statefulset.kubernetes.io/pod-name": "${MANDOR_INSTANCE}",
}
"""Labels that a controller adds to its pods, and that no file has."""
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_REFERENCE = re.compile(r"\$(\$|\(([-A-Za-z0-9._]+)\))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(slots=True)
class Environment:
    """Environment of a container; a name is in one of the two mappings."""

    values: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    """References, `NAME/KEY`."""

    def set(self, name: str, value: str) -> None:
        self.secrets.pop(name, None)
        self.values[name] = value

    def refer(self, name: str, reference: str) -> None:
        self.values.pop(name, None)
        self.secrets[name] = reference

    def expanded(self, text: str, *, secrets: bool = False) -> str:
        """Return the text with `$(NAME)` replaced by the variable and `$$` by `$`; unknown names stay unchanged."""

        def value(match: re.Match[str]) -> str:
            if secrets and match[2] in self.secrets:
                return f"${{secret:{self.secrets[match[2]]}}}"
            return "$" if match[1] == "$" else self.values.get(match[2], match[0])

        return _REFERENCE.sub(value, text)

    def hides(self, text: str) -> str | None:
        """Return the variable in a text whose value is a secret, which is not copied into the text."""
        names = [match[2] for match in _REFERENCE.finditer(text)]
        return next((name for name in names if name in self.secrets or "${secret:" in self.values.get(name, "")), None)


def environment(container: Part, owner: Owner, shelf: ReferencedObjects) -> Environment:
    found = Environment()
    _from_maps(found, container, owner, shelf)
    for each in container.parts("env"):
        name = each.text("name") or ""
        if not _NAME.fullmatch(name):
            each.drop_all("name", f"{name[:40]!r} is not a valid name of an environment variable")
        elif isinstance(source := each.peek("valueFrom"), Mapping) and "secretKeyRef" in source:
            reference = secret_key(each.part("valueFrom").part("secretKeyRef"), owner, shelf)
            if reference is None:
                each.drop("name", f"{name} has no value here")
            else:
                found.refer(name, reference)
        else:
            _set(found, each, name, container, owner, shelf)
    return found


def _set(found: Environment, each: Part, name: str, container: Part, owner: Owner, shelf: ReferencedObjects) -> None:
    value = each.text("value", "") if each.peek("valueFrom") is None else _value_from(each, container, owner, shelf)
    if value is None:
        each.drop("name", f"{name} has no value here")
    else:
        found.set(name, found.expanded(value, secrets=True))


def expanded_words(container: Part, key: str, env: Environment) -> list[str]:
    """Return `command` or `args` with variables filled in."""
    words = container.texts(key)
    for index, each in enumerate(words):
        if (secret := env.hides(each)) is not None:
            why = f"$({secret}) is a secret, which is not copied into commands"
            container.drop_item(key, index, why, f"let a shell do it: sh -c '… ${secret}'")
    return [each if env.hides(each) else env.expanded(each) for each in words]


def _from_maps(found: Environment, container: Part, owner: Owner, shelf: ReferencedObjects) -> None:
    for each in container.parts("envFrom"):
        prefix = each.text("prefix", "")
        for kind in ("configMapRef", "secretRef"):
            if kind not in each:
                continue
            reference, secret = each.part(kind), kind == "secretRef"
            for key, value in (secret_variables if secret else _config_variables)(reference, owner, shelf):
                name = f"{prefix}{key}"
                if _NAME.fullmatch(name) and secret:
                    found.refer(name, value)
                elif _NAME.fullmatch(name):
                    found.set(name, value)
                else:
                    reference.guess("name", f"{key[:40]!r} is not the name of an environment variable, and is left out")


def _config_variables(reference: Part, owner: Owner, shelf: ReferencedObjects) -> Iterator[tuple[str, str]]:
    name = reference.text("name") or ""
    reference.flag("optional")
    data = shelf.config(owner.namespace, name)
    if data is None:
        reference.drop("name", f"the ConfigMap {name} is not among these files")
        return
    yield from data.items()


def _value_from(each: Part, container: Part, owner: Owner, shelf: ReferencedObjects) -> str | None:
    source = each.part("valueFrom")
    source.drop("fileKeyRef", "a variable is not read from a file")
    if "configMapKeyRef" in source:
        return _config_key(source.part("configMapKeyRef"), owner, shelf)
    if "fieldRef" in source:
        return field_value(source.part("fieldRef"), owner)
    if "resourceFieldRef" in source:
        return resource_value(source.part("resourceFieldRef"), container, owner)
    return None


def _config_key(reference: Part, owner: Owner, shelf: ReferencedObjects) -> str | None:
    name, key = reference.text("name") or "", reference.text("key") or ""
    reference.flag("optional")
    data = shelf.config(owner.namespace, name)
    if data is None or key not in data:
        why = f"the ConfigMap {name} is not among these files" if data is None else f"the ConfigMap {name} has no {key}"
        reference.drop("name", why)
        return None
    return data[key]


def field_value(reference: Part, owner: Owner) -> str | None:
    reference.ignore("apiVersion")
    path = reference.text("fieldPath") or ""
    if path in FIELDS:
        return FIELDS[path]
    if path in {"status.podIP", "status.podIPs"} and owner.host_network:
        return FIELDS["status.hostIP"]
    if path == "spec.serviceAccountName":
        return owner.account
    keyed = _KEYED.fullmatch(path)
    if keyed is not None and keyed[2] in _OF_CONTROLLERS:
        return _OF_CONTROLLERS[keyed[2]]
    if keyed is not None:
        return (owner.labels if keyed[1] == "labels" else owner.annotations).get(keyed[2], "")
    reference.drop("fieldPath", f"a task has no variable for its {path}")
    return None


def resource_value(reference: Part, container: Part, owner: Owner) -> str | None:
    """Return a request or limit of the file, in units of the divisor, rounded up."""
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
        reference.drop("resource", f"{asked} is not in this file")
        return None
    return str(int(-(-one // (unit or Fraction(1)))))


def _given(container: Mapping[str, Any], side: str, kind: str) -> Any:
    amounts = container.get("resources")
    found = amounts.get(side) if isinstance(amounts, dict) else None
    return found.get(kind) if isinstance(found, dict) else None
