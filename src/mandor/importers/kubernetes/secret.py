"""Secrets: the objects, and the references of tasks to them; notes never contain a value."""

from collections.abc import Iterator
from typing import Any

from mandor.importers.base import filled, fitting_name
from mandor.importers.kubernetes.meta import read_meta
from mandor.importers.kubernetes.shelf import Owner, ReferencedObjects, secret_texts
from mandor.importers.part import Part

DOCKER_CONFIG = "kubernetes.io/dockerconfigjson"
"""Type of a secret with a Docker configuration, which is used as a pull secret unchanged."""
PULL_KEYS = frozenset({".dockerconfigjson", "username"})
"""A pull secret has one of these keys."""
ACCOUNT_TOKEN = "kubernetes.io/service-account-token"  # noqa: S105 - the name of a type


def read_secret(part: Part) -> dict[str, Any] | None:
    """Return the object with its values; None: the values come from elsewhere."""
    part.text("apiVersion"), part.text("kind")
    if part.text("type") == ACCOUNT_TOKEN:
        part.drop_all("kind", "tokens of service accounts are not made here")
        return None
    meta = read_meta(part)
    if part.flag("immutable"):
        part.drop("immutable", "secrets are not immutable: users with write access can change them")
    if (part.text("type") or "Opaque") not in {"Opaque", DOCKER_CONFIG}:
        part.guess("type", "secrets have no type: its values are kept")
    values = secret_texts(part)
    if not values:
        part.drop_all("kind", "it has no values yet; whoever makes them applies `kind: secret`")
        return None
    return {"kind": "secret"} | filled(
        name=fitting_name(meta.name), namespace=meta.namespace or None, labels=dict(meta.labels), data=values
    )


def secret_key(reference: Part, owner: Owner, shelf: ReferencedObjects) -> str | None:
    """Return `NAME/KEY` of a `secretKeyRef`; None: the file has no such value."""
    name, key = reference.text("name") or "", reference.text("key") or ""
    keys = _keys(reference, "name", name, owner, shelf)
    if keys is not None and key in keys:
        return f"{fitting_name(name)}/{key}"
    if keys is not None or reference.flag("optional"):
        reference.drop("name", f"the Secret {name} has no {key} in these files")
        return None
    return f"{fitting_name(name)}/{key}"


def secret_variables(reference: Part, owner: Owner, shelf: ReferencedObjects) -> Iterator[tuple[str, str]]:
    """Return key and `NAME/KEY` of each value of a `secretRef`."""
    name = reference.text("name") or ""
    reference.flag("optional")
    keys = shelf.secret(owner.namespace, name)
    if keys is None:
        hint = "import it together with them, or name its values one by one"
        reference.drop("name", f"the Secret {name} is not among these files, and its keys are not known", hint)
        return
    yield from ((key, f"{fitting_name(name)}/{key}") for key in sorted(keys))


def secret_items(
    source: Part, named: str, owner: Owner, shelf: ReferencedObjects
) -> list[tuple[str, str, Part | None]]:
    """Return path, `NAME/KEY` and item of each file of a Secret volume; `named`: the key with the secret's name."""
    name, optional = source.text(named) or "", source.flag("optional")
    keys = shelf.secret(owner.namespace, name)
    items = source.parts("items")
    if keys is None and (optional or not items):
        source.drop("items", "its Secret is not among these files")
        if not optional:
            source.drop(named, f"the Secret {name} is not among these files, and its keys are not known")
        return []
    if not items:
        return [(key, f"{fitting_name(name)}/{key}", None) for key in sorted(keys or ())]
    _keys(source, named, name, owner, shelf)
    found: list[tuple[str, str, Part | None]] = []
    for item in items:
        key, path = item.text("key") or "", item.text("path") or ""
        if keys is None or key in keys:
            found.append((path, f"{fitting_name(name)}/{key}", item))
        else:
            item.drop("key", f"the Secret {name} has no {key}")
            item.drop("mode", "there is no such file")
    return found


def pull_secret(pod: Part, owner: Owner, shelf: ReferencedObjects) -> str | None:
    """Return the first of a pod's `imagePullSecrets`; the others are reported, because a task has one."""
    found = None
    for number, each in enumerate(pod.parts("imagePullSecrets")):
        name = each.text("name") or ""
        if number:
            each.drop("name", "a task has one pull secret", "put all logins into one Docker configuration")
            continue
        keys = _keys(each, "name", name, owner, shelf)
        if keys is not None and not keys & PULL_KEYS:
            each.drop("name", f"the Secret {name} has no login in the form of {DOCKER_CONFIG}")
            continue
        found = fitting_name(name)
    return found


def _keys(part: Part, at: str, name: str, owner: Owner, shelf: ReferencedObjects) -> frozenset[str] | None:
    """Return the keys of a Secret; a Secret that is not among the files is reported."""
    keys = shelf.secret(owner.namespace, name)
    if keys is None and not part.flag("optional"):
        part.guess(at, f"it is not among these files: a secret {fitting_name(name)} must exist")
    return keys
