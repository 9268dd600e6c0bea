"""Apply and delete by manifest."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.admission import known_engines
from mandor.api.apply import ApplyPlan, Prune, Result, apply
from mandor.api.deletion import Deletion
from mandor.api.foreign import ImportReport, Read, Reading
from mandor.api.http.fair_queue import Lane
from mandor.api.operation import JSON, YAML, Call, Operation
from mandor.api.routes.queries import Format, Labels, Namespace, Strict
from mandor.api.selector import parse_selector
from mandor.api.writing import Author
from mandor.errors import Invalid, TooLarge
from mandor.model.manifest import DEFAULT_NAMESPACE

TAKES = (YAML, JSON, "application/x-yaml", "text/yaml")
FILES_MOST = 1000


class ManifestFile(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Note(max_length=4096)]
    text: str


class ManifestFiles(Struct, frozen=True, forbid_unknown_fields=True):
    files: Annotated[list[ManifestFile], Note(max_length=FILES_MOST)]


class ApplyQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace = DEFAULT_NAMESPACE
    format: Format = ""
    strict: Strict = False
    dry_run: Annotated[bool, Note(description="Report the changes without writing them.")] = False
    prune: Annotated[bool, Note(description="Delete workloads with `labels` that the manifest does not name.")] = False
    labels: Labels = ""


class DeleteQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace = DEFAULT_NAMESPACE
    format: Format = ""
    strict: Strict = False
    dry_run: bool = False
    volumes: Annotated[
        bool, Note(description="Delete volumes and their data, too, even if their `reclaim` is `keep`.")
    ] = False


class Applied(Struct, frozen=True, omit_defaults=True):
    results: list[Result]
    revision: int
    imported: ImportReport | None = None
    """Report of the conversion, if the files were those of another tool."""


def files_in(body: bytes, content_type: str, most: int) -> Sequence[tuple[str, str | bytes]]:
    """Return (name, text) of each file; a JSON body is a manifest itself, or contains several."""
    if content_type == JSON:
        try:
            found = msgspec.json.decode(body, type=ManifestFiles)
        except msgspec.DecodeError as error:
            if _holds_files(body):
                raise Invalid(f"the body is invalid: {error}", hint='`{"files": [{"name": …, "text": …}]}`') from error
        else:
            size = sum(len(each.text) for each in found.files)
            if size > most:
                raise TooLarge(f"the manifests have {size} characters; at most {most} are allowed", most=most)
            if not found.files:
                raise Invalid("`files` is empty")
            return [(each.name, each.text) for each in found.files]
    if len(body) > most:
        raise TooLarge(f"the manifest has {len(body)} bytes; at most {most} are allowed", most=most)
    return [("", body)]


def _holds_files(body: bytes) -> bool:
    try:
        plain = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return False
    return "files" in plain


async def read_body(call: Call[Any, bytes], *, check_engines: bool) -> Read:
    files = files_in(call.body, call.content_type, call.parts.settings.manifest_bytes_most)
    return await read_files(call, files, check_engines=check_engines)


async def read_files(call: Call[Any, bytes], files: Sequence[tuple[str, str | bytes]], *, check_engines: bool) -> Read:
    """Return the documents in the files of a request."""
    parts, query = call.parts, call.query
    engines = await known_engines(parts.store, parts.settings.engines) if check_engines else None
    turn = partial(parts.request_admission.slot, Lane.CONVERSION, call.caller)
    return await Reading(query.namespace, engines, query.format, query.strict, turn).read(files)


async def apply_manifest(call: Call[ApplyQuery, bytes]) -> Applied:
    query = call.query
    selector = parse_selector(query.labels)
    if query.prune and not selector:
        raise Invalid(
            "`prune` needs `labels`",
            hint="only workloads with these labels are deleted: --prune --labels app=shop",
            parameter="labels",
        )
    if selector and not query.prune:
        raise Invalid("`labels` is only valid with `prune`", parameter="labels")
    read = await read_body(call, check_engines=True)
    documents = read.documents
    prune = None
    if query.prune:
        namespaces = {each.object.meta.namespace for each in documents if each.object.namespaced}
        prune = Prune(selector, frozenset(namespaces | {query.namespace}))
    author = Author(call.caller, call.address, "apply")
    return _applied(await apply(call.parts, author, documents, prune=prune, dry_run=query.dry_run), read)


async def delete_manifest(call: Call[DeleteQuery, bytes]) -> Applied:
    read = await read_body(call, check_engines=False)
    author = Author(call.caller, call.address, "delete")
    query = call.query
    deletion = Deletion(call.parts, author, read.documents, volumes=query.volumes, dry_run=query.dry_run)
    return _applied(await deletion.run(), read)


def _applied(plan: ApplyPlan, read: Read) -> Applied:
    return Applied(list(plan.results.values()), plan.revision, read.imported)


OPERATIONS = [
    Operation(
        method="POST",
        path="/v1/apply",
        name="apply",
        summary="Create or change the objects of a manifest; returns the changes",
        tag="manifests",
        handler=apply_manifest,
        query=ApplyQuery,
        body=bytes,
        shape=ManifestFiles,
        takes=TAKES,
        result=Applied,
        refuses=("conflict",),
    ),
    Operation(
        method="POST",
        path="/v1/delete",
        name="delete",
        summary="Delete the objects of a manifest",
        tag="manifests",
        handler=delete_manifest,
        query=DeleteQuery,
        body=bytes,
        shape=ManifestFiles,
        takes=TAKES,
        result=Applied,
        refuses=("conflict",),
    ),
]
