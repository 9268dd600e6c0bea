"""Renders a Kustomization: reads its resources and applies its transformations in Kustomize's order.

Files are read below the folder of their Kustomization only; folders with further Kustomizations may be elsewhere.
"""

import posixpath
from dataclasses import dataclass, field
from typing import Any

from mandor.errors import Invalid, TooLarge
from mandor.importers.base import Options
from mandor.importers.kustomize.generation import content_hash, encoded, literal, read_env
from mandor.importers.kustomize.names import rename
from mandor.importers.kustomize.objects import UNPREFIXED, KustomizedObject
from mandor.importers.kustomize.patching import PatchError, apply_json, merge_strategic
from mandor.importers.kustomize.transforming import (
    Target,
    add_annotations,
    add_labels,
    set_image,
    set_namespace,
    set_replicas,
)
from mandor.importers.part import Ledger, Part, plain
from mandor.lib import regex
from mandor.lib.yaml12 import Malformed, Map, Parsed, load_all
from mandor.model.manifest import OBJECTS_MOST

FILE_NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
DEPTH_MOST = 16
FILES_MOST = 1000
"""Files that one Kustomization reads, with those that it names."""
BYTES_MOST = 16 << 20
"""Characters of all these files."""
NODES_MOST = 1_000_000
_NOT_RENDERED = {
    "helmCharts": "render the chart first: `helm template`",
    "helmGlobals": "render the chart first: `helm template`",
    "helmChartInflationGenerator": "render the chart first: `helm template`",
    "generators": "run `kustomize build`, and import its output",
    "transformers": "run `kustomize build`, and import its output",
    "validators": "run `kustomize build`, and import its output",
    "replacements": "run `kustomize build`, and import its output",
    "vars": "run `kustomize build`, and import its output",
    "configurations": "run `kustomize build`, and import its output",
    "crds": "run `kustomize build`, and import its output",
    "openapi": "run `kustomize build`, and import its output",
}
"""Keys that change the objects and are not rendered, with a hint."""


def is_kustomization(name: str, text: str) -> bool:
    """Return whether a file is a Kustomization, by its name or its kind."""
    return posixpath.basename(name) in FILE_NAMES or "\nkind: Kustomization" in f"\n{text}"


@dataclass(slots=True)
class Kustomizer:
    ledger: Ledger
    options: Options
    files: int = 0
    letters: int = 0

    def render(self, file: str, text: str) -> list[tuple[str, list[Parsed]]]:
        """Return the rendered objects with the files that they come from."""
        objects = self._rendered(file, text, ())
        self._add_hashes(objects)
        return [(each.file, [each.parsed()]) for each in objects]

    # Files.

    def _read(self, path: str, part: Part, key: str) -> str:
        text = self.options.read(path)
        if text is None:
            hint = "a Kustomization is rendered where its folder is: `mandor apply -f FOLDER`"
            raise part.wrong(key, f"there is no text file {path}", hint)
        self.files, self.letters = self.files + 1, self.letters + len(text)
        if self.files > FILES_MOST or self.letters > BYTES_MOST:
            raise TooLarge(f"more than {FILES_MOST} files or {BYTES_MOST:,} characters", file=part.file, line=1)
        return text

    def _beside(self, part: Part, key: str, path: str) -> str:
        """Return the path of a file below the folder of the Kustomization."""
        folder = posixpath.dirname(part.file)
        found = posixpath.normpath(posixpath.join(folder, path))
        if path.startswith("/") or posixpath.relpath(found, folder or ".").startswith(".."):
            raise part.wrong(key, f"the file {path[:60]} is outside of the folder of the Kustomization")
        return found

    def _documents(self, file: str, text: str) -> list[Parsed]:
        try:
            return load_all(text, bytes_most=BYTES_MOST, nodes_most=NODES_MOST)
        except Malformed as error:
            kind = TooLarge if error.over else Invalid
            raise kind(error.message, hint=error.hint, file=file, line=error.line) from None

    # Kustomizations.

    def _rendered(
        self, file: str, text: str, above: tuple[str, ...], objects: list[KustomizedObject] | None = None
    ) -> list[KustomizedObject]:
        """Return the objects of a Kustomization; a component changes the given ones."""
        if file in above or len(above) >= DEPTH_MOST:
            why = "a Kustomization contains itself" if file in above else f"more than {DEPTH_MOST} levels of folders"
            raise Invalid(why, file=file, line=1)
        documents = self._documents(file, text)
        if len(documents) != 1:
            raise Invalid("a Kustomization is one document", file=file, line=1)
        part = self.ledger.open(documents[0].value, file, "", documents[0].line)
        part.text("apiVersion"), part.text("kind")
        part.ignore("metadata")
        made = objects if objects is not None else []
        for key in ("resources", "bases"):
            for index, path in enumerate(part.texts(key)):
                made += self._resource(part, key, index, path, (*above, file))
        self._generate(part, made)
        for path in part.texts("components"):
            self._folder(part, "components", path, (*above, file), made)
        self._transform(part, made)
        for key, hint in _NOT_RENDERED.items():
            part.drop(key, "it is not rendered here", hint)
        for key in ("buildMetadata", "sortOptions"):
            part.ignore(key)
        if len(made) > OBJECTS_MOST:
            raise TooLarge(f"at most {OBJECTS_MOST} objects are allowed", file=file, line=1)
        return made

    def _resource(self, part: Part, key: str, index: int, path: str, above: tuple[str, ...]) -> list[KustomizedObject]:
        if "://" in path or path.startswith(("github.com/", "git@")) or "?ref=" in path:
            raise part.wrong(key, f"{path[:80]} is fetched from elsewhere", "fetch it first, or run `kustomize build`")
        folder = posixpath.dirname(part.file)
        if self.options.read(posixpath.normpath(posixpath.join(folder, path))) is None:
            return self._folder(part, key, path, above)
        file = self._beside(part, key, path)
        return [self._object(file, each) for each in self._documents(file, self._read(file, part, key)) if each.value]

    def _folder(
        self,
        part: Part,
        key: str,
        path: str,
        above: tuple[str, ...],
        objects: list[KustomizedObject] | None = None,
    ) -> list[KustomizedObject]:
        folder = posixpath.normpath(posixpath.join(posixpath.dirname(part.file), path))
        for name in FILE_NAMES:
            file = posixpath.join(folder, name)
            if self.options.read(file) is not None:
                return self._rendered(file, self._read(file, part, key), above, objects)
        hint = "a Kustomization is rendered where its folder is: `mandor apply -f FOLDER`"
        raise part.wrong(key, f"there is no file {path[:80]}, and no Kustomization in a folder of that name", hint)

    def _object(self, file: str, document: Parsed) -> KustomizedObject:
        if not isinstance(document.value, Map):
            raise Invalid("expected an object of Kubernetes", file=file, line=document.line)
        return KustomizedObject(plain(document.value), document.value, file, document.line)

    # Transformations, in the order of Kustomize.

    def _transform(self, part: Part, objects: list[KustomizedObject]) -> None:
        self._patch(part, objects)
        namespace = part.text("namespace")
        if namespace:
            set_namespace(objects, namespace)
        prefix, suffix = part.text("namePrefix") or "", part.text("nameSuffix") or ""
        if prefix or suffix:
            rename(objects, lambda each: each.name if each.kind in UNPREFIXED else f"{prefix}{each.name}{suffix}")
        add_labels(objects, part.text_map("commonLabels"), selectors=True, templates=True)
        for each in part.parts("labels"):
            selectors, templates = each.flag("includeSelectors"), each.flag("includeTemplates")
            each.drop("fields", "labels are added to metadata, selectors and templates only")
            add_labels(objects, each.text_map("pairs"), selectors=selectors, templates=templates or selectors)
        add_annotations(objects, part.text_map("commonAnnotations"))
        for each in part.parts("replicas"):
            if not set_replicas(objects, each.text("name") or "", each.whole("count") or 0):
                each.drop("name", "there is no object of this name")
        for each in part.parts("images"):
            tag, digest = each.text("newTag"), each.text("digest")
            if not set_image(objects, each.text("name") or "", each.text("newName"), tag, digest):
                each.drop("name", "no container has this image")

    def _patch(self, part: Part, objects: list[KustomizedObject]) -> None:
        old = "patchesStrategicMerge"
        for given in part.texts(old):
            inline = "\n" in given or ":" in given
            text = given if inline else self._read(self._beside(part, old, given), part, old)
            self._apply(part, old, text, None, objects)
        for key in ("patchesJson6902", "patches"):
            for each in part.parts(key):
                path = each.text("path") or ""
                text = each.text("patch") or self._read(self._beside(each, "path", path), each, "path")
                target = Target.read(each.part("target")) if "target" in each else None
                options = each.part("options")
                for name in options:
                    if options.flag(name):
                        options.drop(name, "a patch does not change kinds and names")
                self._apply(each, "path" if path else "patch", text, target, objects)

    def _apply(self, part: Part, key: str, text: str, target: Target | None, objects: list[KustomizedObject]) -> None:
        for document in self._documents(part.file, text):
            patch = plain(document.value)
            chosen = target or (Target.of(patch) if isinstance(patch, dict) else None)
            if chosen is None:
                raise part.wrong(key, "a JSON patch has a `target`")
            try:
                found = [each for each in objects if chosen.matches(each)]
            except regex.Unfit as error:
                raise part.wrong("target", str(error)) from None
            if not found:
                raise part.wrong(key, f"there is no object for the patch: {chosen}")
            for each in found:
                try:
                    self._change(each, patch, objects)
                except PatchError as error:
                    raise part.wrong(key, f"{each.kind} {each.name}: {error}") from None

    def _change(self, each: KustomizedObject, patch: Any, objects: list[KustomizedObject]) -> None:
        if isinstance(patch, list):
            each.data = apply_json(each.data, patch)
            return
        given = {key: value for key, value in patch.items() if key not in {"apiVersion", "kind"}}
        meta = given.get("metadata")
        if isinstance(meta, dict):
            given["metadata"] = {key: value for key, value in meta.items() if key not in {"name", "namespace"}}
        merged = merge_strategic(each.data, given)
        if merged is None:
            objects.remove(each)
        else:
            each.data = merged

    # Generators.

    def _generate(self, part: Part, objects: list[KustomizedObject]) -> None:
        usual = part.part("generatorOptions")
        shared = _Settings.read(usual)
        for key, kind in (("configMapGenerator", "ConfigMap"), ("secretGenerator", "Secret")):
            for each in part.parts(key):
                self._generated(each, kind, _Settings.read(each.part("options"), shared), objects)

    def _generated(self, part: Part, kind: str, settings: "_Settings", objects: list[KustomizedObject]) -> None:
        name, namespace = part.text("name") or "", part.text("namespace")
        behavior = part.text("behavior") or "create"
        texts = self._texts(part)
        data = {key: encoded(text) for key, text in texts.items()} if kind == "Secret" else texts
        meta: dict[str, Any] = {"name": name} | ({"namespace": namespace} if namespace else {})
        meta |= {"labels": settings.labels} if settings.labels else {}
        meta |= {"annotations": settings.annotations} if settings.annotations else {}
        made: dict[str, Any] = {"apiVersion": "v1", "kind": kind, "metadata": meta, "data": dict(sorted(data.items()))}
        if kind == "Secret":
            made["type"] = part.text("type") or "Opaque"
        if settings.immutable:
            made["immutable"] = True
        held = next(
            (each for each in objects if each.original == (kind, name) or (each.kind, each.name) == (kind, name)), None
        )
        if behavior == "create":
            if held is not None:
                raise part.wrong("name", f"there is a {kind} {name} already", "`behavior: merge` or `replace`")
            new = KustomizedObject(made, Map(part.line), part.file, part.line, hashed=settings.hashed)
            objects.append(new)
        elif behavior in {"merge", "replace"}:
            if held is None:
                raise part.wrong("behavior", f"there is no {kind} {name} to change")
            kept = held.data.get("data") or {} if behavior == "merge" else {}
            held.data["data"] = dict(sorted({**kept, **made["data"]}.items()))
        else:
            raise part.wrong("behavior", f"{behavior[:40]!r} is none of create, merge, replace")

    def _texts(self, part: Part) -> dict[str, str]:
        found: dict[str, str] = {}
        for key in ("envs", "env"):
            for path in part.texts(key):
                found |= read_env(self._read(self._beside(part, key, path), part, key))
        for text in part.texts("files"):
            name, equals, path = text.partition("=")
            place = path if equals else text
            found[name if equals else posixpath.basename(text)] = self._read(
                self._beside(part, "files", place), part, "files"
            )
        for text in part.texts("literals"):
            try:
                name, value = literal(text)
            except ValueError as error:
                raise part.wrong("literals", str(error)) from None
            found[name] = value
        return found

    def _add_hashes(self, objects: list[KustomizedObject]) -> None:
        def new(each: KustomizedObject) -> str:
            return f"{each.name}-{content_hash(each.kind, each.data, each.name)}" if each.hashed else each.name

        rename(objects, new)


@dataclass(frozen=True, slots=True)
class _Settings:
    """`generatorOptions`, and `options` of one generator."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    hashed: bool = True
    immutable: bool = False

    @classmethod
    def read(cls, part: Part, usual: "_Settings | None" = None) -> "_Settings":
        usual = usual or cls()
        return cls(
            {**usual.labels, **part.text_map("labels")},
            {**usual.annotations, **part.text_map("annotations")},
            not part.flag("disableNameSuffixHash", default=not usual.hashed),
            part.flag("immutable", default=usual.immutable),
        )
