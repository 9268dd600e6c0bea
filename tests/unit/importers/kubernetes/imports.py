"""Kubernetes' texts, imported."""

from __future__ import annotations

from typing import Any

from mandor.importers.base import Imported, Options, Source
from mandor.importers.kubernetes.importer import KubernetesImporter
from mandor.importers.registry import convert


def imported(*texts: str) -> Imported:
    files = [Source(f"{number}.yaml", text) for number, text in enumerate(texts)]
    return convert(KubernetesImporter(), files, Options())


def only(*texts: str) -> dict[str, Any]:
    """The one manifest that they come to."""
    (made,) = imported(*texts).made
    return made.manifest


def indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.strip("\n").splitlines())


def pod(spec: str, container: str = "") -> str:
    """A pod of one container, with more about it and its container."""
    return (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {app: web}}\nspec:\n"
        f"{indented(spec, 2)}  containers:\n  - name: main\n    image: nginx:1\n{indented(container, 4)}"
    )


def deployment(spec: str = "", pod_spec: str = "", container: str = "", name: str = "web") -> str:
    return (
        f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n{indented(spec, 2)}"
        f"  selector: {{matchLabels: {{app: {name}}}}}\n"
        f"  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n{indented(pod_spec, 6)}"
        f"      containers:\n      - name: main\n        image: nginx:1\n{indented(container, 8)}"
    )


def service(ports: str = "[{port: 80}]", more: str = "", name: str = "web", selector: str = "{app: web}") -> str:
    """A Service with a selector and ports, unless they are empty, and more."""
    chosen = f"  selector: {selector}\n" if selector else ""
    listed = f"  ports: {ports}\n" if ports else ""
    return f"apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n{chosen}{listed}{indented(more, 2)}"


def told(found: Imported) -> dict[str, str]:
    """What the report says, by path."""
    return {note.path: note.text for note in found.report.notes}
