"""Converts Nomad job files (HCL and JSON): one workload per job."""

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from mandor.errors import Invalid, TooLarge
from mandor.importers.base import Imported, Importer, Made, Options, Source
from mandor.importers.nomad.budget import Budget
from mandor.importers.nomad.evaluation import Evaluator, Later, Titled, needs
from mandor.importers.nomad.from_json import job_from_json
from mandor.importers.nomad.job import JobReader
from mandor.importers.nomad.nodes import Block, Body
from mandor.importers.nomad.syntax import parse
from mandor.importers.nomad.variable_file import read_variable_files
from mandor.importers.part import Ledger
from mandor.lib.yaml12 import List, Malformed, Map, load_all

_JSON = re.compile(
    r'\s*\{\s*"(?:[Jj]ob"\s*:\s*\{|(?:ID|Name|Region|Type|TaskGroups|Datacenters)"\s*:(?s:.*)"TaskGroups"\s*:)'
)
_JOB = re.compile(r'^[ \t]*job\s+"?[\w.${}\[\]-]+"?\s*\{', re.MULTILINE)


class NomadImporter(Importer):
    name: ClassVar[str] = "nomad"
    title: ClassVar[str] = "Nomad"
    suffixes: ClassVar[tuple[str, ...]] = (".hcl", ".nomad")

    def detect(self, text: str, name: str) -> bool:
        return _JOB.search(text) is not None or _JSON.match(text) is not None

    def read(self, files: Sequence[Source], options: Options) -> Imported:
        ledger = Ledger()
        made: list[Made] = []
        for file in files:
            made += _file(file, options, ledger)
        return Imported(tuple(made), ledger.report())


def _file(file: Source, options: Options, ledger: Ledger) -> list[Made]:
    if _JSON.match(file.text):
        return _json(file, ledger)
    jobs = trees_of_jobs(file.text, options, file.name)
    return [each for name, job in jobs.items() for each in read_job(ledger, job, file.name, name)]


def trees_of_jobs(text: str, options: Options, file: str = "") -> dict[str, Map]:
    """Return each job of a file, evaluated as far as possible."""
    try:
        return _trees_of_jobs(text, options, file)
    except RecursionError:
        raise TooLarge("expressions or lists are nested too deeply", file=file, line=1) from None


def _trees_of_jobs(text: str, options: Options, file: str) -> dict[str, Map]:
    body = parse(text, file)
    evaluator = Evaluator(file, options, budget=Budget(file))
    evaluator.names["var"] = _variables(body, evaluator)
    evaluator.names["local"] = _locals(body, evaluator)
    jobs = [each for each in body.blocks if each.kind == "job"]
    if not jobs:
        raise Invalid("the file has no job", file=file, line=1)
    for each in body.blocks:
        if each.kind not in {"job", "variable", "locals"}:
            raise Invalid(f"there is no block `{each.kind}` in a job file", file=file, line=each.line)
    found: dict[str, Map] = {}
    for each in jobs:
        if len(each.labels) != 1 or each.labels[0] in found:
            raise Invalid('a job has a name of its own: `job "NAME" { … }`', file=file, line=each.line)
        found[each.labels[0]] = with_groups(evaluator.body(each.body, each.line))
    return found


def with_groups(job: Titled) -> Titled:
    """Return the job with each task outside of a group in a group of its name, as Nomad reads it."""
    tasks = job.get("task")
    if not isinstance(tasks, List) or not all(isinstance(each, Titled) for each in tasks):
        return job
    made = Titled(job.line, job.labels)
    groups = List(job.lines["task"])
    for kept in job.get("group") or ():
        groups.add(kept, kept.line)
    for task in tasks:
        group = Titled(task.line, task.labels)
        held = List(task.line)
        held.add(task, task.line)
        group.set("task", held, task.line)
        groups.add(group, task.line)
    for key, value in job.items():
        if key not in {"task", "group"}:
            made.set(key, value, job.lines[key])
    made.set("group", groups, groups.line)
    return made


def read_job(ledger: Ledger, tree: Map, file: str, name: str) -> list[Made]:
    return JobReader(ledger.open(tree, file, f"job.{name}", tree.line), name).made()


def _json(file: Source, ledger: Ledger) -> list[Made]:
    try:
        (document,) = load_all(file.text)
    except Malformed as error:
        raise Invalid(error.message, hint=error.hint, file=file.name, line=error.line) from None
    source = document.value
    source = source.get("Job", source.get("job", source)) if isinstance(source, Map) else source
    if not isinstance(source, Map) or not isinstance(source.get("TaskGroups"), list):
        raise Invalid("a job in JSON has `TaskGroups`, as `nomad job inspect` shows it", file=file.name, line=1)
    name = str(source.get("ID") or source.get("Name") or "job")
    part = ledger.open(job_from_json(source), file.name, f"job.{name}", source.line)
    return JobReader(part, name).made()


def _variables(body: Body, evaluator: Evaluator) -> dict[str, Any]:
    """Return the values of `var.NAME`: given ones, then those of files, of the environment, and defaults."""
    found: dict[str, Any] = {}
    stored = read_variable_files(evaluator.options)
    for each in body.blocks:
        if each.kind != "variable" or len(each.labels) != 1:
            continue
        name = each.labels[0]
        given = evaluator.options.variables.get(name)
        if given is None and name in stored:
            found[name] = stored[name]
            continue
        given = given if given is not None else evaluator.options.environment.get(f"NOMAD_VAR_{name}")
        default = next((item for item in each.body.attributes if item.name == "default"), None)
        if given is not None:
            found[name] = _given(given, each)
        elif default is not None:
            found[name] = evaluator.value(default.value, default.line)
        else:
            hint = f"--var {name}=VALUE"
            raise Invalid(f"the variable {name!r} has no value", hint=hint, file=evaluator.file, line=each.line)
    return found


def _given(text: str, block: Block) -> Any:
    """Return a given value as text, unless the variable declares another type."""
    declared = next((item.value for item in block.body.attributes if item.name == "type"), None)
    if declared is None or getattr(declared, "name", "") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _locals(body: Body, evaluator: Evaluator) -> dict[str, Any]:
    """Evaluate locals in any order: each is retried until all locals that it needs have a value."""
    wanted = [item for each in body.blocks if each.kind == "locals" for item in each.body.attributes]
    found: dict[str, Any] = {}
    evaluator.names["local"] = found
    while wanted:
        left = []
        for item in wanted:
            try:
                found[item.name] = evaluator.value(item.value, item.line)
            except TooLarge:
                raise
            except (Invalid, Later):
                left.append(item)
        if len(left) == len(wanted):
            names = {item.name for item in left}
            at_fault = next((item for item in left if not needs(item.value) & names), None)
            if at_fault is None:
                message = f"these locals need each other: {', '.join(sorted(names))}"
                raise Invalid(message, hint="write one of them out", file=evaluator.file, line=left[0].line)
            evaluator.needed(at_fault)  # raises the error
        wanted = left
    return found
