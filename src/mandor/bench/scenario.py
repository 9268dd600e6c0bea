"""Reads a file of test cases: lists of operations, and workloads that set their parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mandor.errors import Invalid
from mandor.lib.words import did_you_mean
from mandor.lib.yaml12 import List, Malformed, Map, load_all

_COUNT = frozenset({"count", "countParam"})
OPCODES: dict[str, frozenset[str]] = {
    "createNodes": _COUNT
    | {"nodeTemplatePath", "labelNodePrepareStrategy", "uniqueNodeLabelStrategy", "nodeAllocatableStrategy"},
    "createNamespaces": _COUNT | {"prefix", "namespaceTemplatePath"},
    "createPods": _COUNT
    | {"podTemplatePath", "namespace", "collectMetrics", "skipWaitToCompletion", "templateParams"}
    | {"countMultiplierParam", "signatureBatchSize", "signatureBatchSizeParam"}
    | {"persistentVolumeTemplatePath", "persistentVolumeClaimTemplatePath"},
    "createPodSets": _COUNT | {"namespacePrefix", "createPodsOp"},
    "createPodGroups": _COUNT | {"namespace", "templatePath", "templateParams"},
    "createAny": _COUNT | {"namespace", "templatePath"},
    "updateAny": _COUNT | {"namespace", "templatePath", "updatePerSecond", "subresources"},
    "deletePods": frozenset({"namespace", "labelSelector", "deletePodsPerSecond", "skipWaitToCompletion"}),
    "churn": frozenset({"mode", "number", "templatePaths", "intervalMilliseconds", "namespace"}),
    "barrier": frozenset({"stageRequirement", "labelSelector"}),
    "sleep": frozenset({"duration", "durationParam"}),
    "startCollectingMetrics": frozenset({"name", "namespaces", "labelSelector"}),
    "stopCollectingMetrics": frozenset(),
}
"""Keys of each operation; any other key is an error with its line."""

_CASE = frozenset(
    {"name", "workloadTemplate", "workloads", "defaultPodTemplatePath", "schedulerConfigPath"}
    | {"featureGates", "metricsCollectorConfig", "labels"}
)
_WORKLOAD = frozenset(
    {"name", "params", "labels", "threshold", "thresholdMetricSelector", "featureGates", "durationMinutes"}
)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation as written; `number` counts from 0, and names its default namespace."""

    number: int
    opcode: str
    source: Map
    file: Path
    params: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value; `$name` is the parameter of that name."""
        return self._resolved(key, self.source.get(key, default))

    def count(self, default: int | None = None) -> int:
        key = "countParam" if "countParam" in self.source else "count"
        many = self.get(key, default)
        if not isinstance(many, int) or isinstance(many, bool) or many < 0:
            self.refuse(key, f"`{key}` is a number of 0 or more, not {many!r}")
        more = self.get("countMultiplierParam", 1)
        return many * int(more)

    def number_of(self, key: str, default: float) -> float:
        found = self.get(key, default)
        if not isinstance(found, int | float) or isinstance(found, bool) or found < 0:
            self.refuse(key, f"`{key}` is a number, not {found!r}")
        return float(found)

    def path(self, key: str, default: Path | None = None) -> Path | None:
        """Return the path of a file that the operation names, relative to the scenario file."""
        named = self.get(key)
        return self.file.parent / str(named) if named is not None else default

    def values(self) -> dict[str, Any]:
        """Return the values for its templates, besides `.Index` and `.Count`."""
        given = self.source.get("templateParams") or {}
        return {name: self._resolved("templateParams", value) for name, value in given.items()}

    def selector(self) -> dict[str, str]:
        return {str(key): str(value) for key, value in (self.get("labelSelector") or {}).items()}

    def inner(self, key: str) -> "Op":
        """Return an operation nested in this one."""
        source = self.source.get(key)
        if not isinstance(source, Map):
            self.refuse(key, f"`{key}` is an operation")
        return Op(self.number, "createPods", source, self.file, self.params)

    def refuse(self, key: str, message: str, hint: str | None = None) -> NoReturn:
        line = self.source.lines.get(key, self.source.line)
        raise Invalid(f"{self.opcode}: {message}", hint=hint, file=str(self.file), line=line)

    def _resolved(self, key: str, value: Any) -> Any:
        if not isinstance(value, str) or not value.startswith("$"):
            return value
        name = value[1:]
        if name not in self.params:
            self.refuse(key, f"the workload gives no parameter `{name}`", did_you_mean(name, self.params))
        return self.params[name]


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    params: Map
    labels: tuple[str, ...]
    threshold: float | None
    """Minimum throughput that Kubernetes' own tests require of its scheduler, in pods per second."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    file: Path
    template: tuple[Map, ...]
    workloads: tuple[Workload, ...]
    pod_template: Path | None
    scheduler_config: Path | None

    def ops(self, workload: Workload) -> list[Op]:
        return [Op(at, source["opcode"], source, self.file, workload.params) for at, source in enumerate(self.template)]


def read_cases(path: Path) -> list[Case]:
    """Return the cases; raise `Invalid` with file and line."""
    try:
        documents = load_all(path.read_bytes())
    except OSError as error:
        raise Invalid(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    except Malformed as error:
        raise Invalid(error.message, hint=error.hint, file=str(path), line=error.line) from None
    cases = []
    for document in documents:
        if not isinstance(document.value, List):
            _wrong(path, document.line, "a scenario file is a list of test cases")
        cases += [_case(path, each, line) for each, line in zip(document.value, document.value.lines, strict=True)]
    if not cases:
        _wrong(path, 1, "there is no test case in this file")
    return cases


def find_case(cases: list[Case], wanted: str) -> tuple[Case, Workload]:
    """Return the case `NAME/WORKLOAD`; the name of a workload can contain slashes."""
    name, _, workload_name = wanted.partition("/")
    case = next((each for each in cases if each.name == name), None)
    if case is None:
        raise Invalid(f"there is no case {name!r}", hint=did_you_mean(name, [each.name for each in cases]))
    workload = next((each for each in case.workloads if each.name == workload_name), None)
    if workload is None:
        names = [each.name for each in case.workloads]
        given = f"the case {name} has no workload {workload_name!r}" if workload_name else f"{name}/WORKLOAD is missing"
        raise Invalid(given, hint=f"it has {', '.join(names)}")
    return case, workload


def _case(path: Path, source: Any, line: int) -> Case:
    if not isinstance(source, Map):
        _wrong(path, line, "a test case is a mapping with `name`, `workloadTemplate` and `workloads`")
    _only(path, source, _CASE, "a test case")
    name = _text(path, source, "name")
    template = source.get("workloadTemplate")
    workloads = source.get("workloads")
    if not isinstance(template, List) or not isinstance(workloads, List):
        _wrong(path, source.line, f"the case {name} needs a `workloadTemplate` and `workloads`, both lists")
    return Case(
        name,
        path,
        tuple(_op(path, each, at) for each, at in zip(template, template.lines, strict=True)),
        tuple(_workload(path, each, at) for each, at in zip(workloads, workloads.lines, strict=True)),
        _relative_path(path, source, "defaultPodTemplatePath"),
        _relative_path(path, source, "schedulerConfigPath"),
    )


def _op(path: Path, source: Any, line: int) -> Map:
    if not isinstance(source, Map) or not isinstance(source.get("opcode"), str):
        _wrong(path, line, "an operation has an `opcode`")
    opcode = source["opcode"]
    if opcode not in OPCODES:
        _wrong(path, source.lines["opcode"], f"there is no operation {opcode!r}", did_you_mean(opcode, OPCODES))
    _only(path, source, OPCODES[opcode] | {"opcode"}, opcode)
    if isinstance(source.get("createPodsOp"), Map):
        _op(path, source["createPodsOp"], source.lines["createPodsOp"])
    return source


def _workload(path: Path, source: Any, line: int) -> Workload:
    if not isinstance(source, Map):
        _wrong(path, line, "a workload is a mapping with `name` and `params`")
    _only(path, source, _WORKLOAD, "a workload")
    params = source.get("params", Map())
    threshold = source.get("threshold")
    if not isinstance(params, Map):
        _wrong(path, source.lines["params"], "`params` is a mapping")
    if threshold is not None and not isinstance(threshold, int | float):
        _wrong(path, source.lines["threshold"], "`threshold` is a number")
    labels = tuple(str(each) for each in source.get("labels") or ())
    return Workload(_text(path, source, "name"), params, labels, threshold)


def _text(path: Path, source: Map, key: str) -> str:
    if not isinstance(source.get(key), str):
        _wrong(path, source.lines.get(key, source.line), f"a `{key}` is missing, or is no text")
    return str(source[key])


def _relative_path(path: Path, source: Map, key: str) -> Path | None:
    return path.parent / str(source[key]) if source.get(key) else None


def _only(path: Path, source: Map, known: frozenset[str], what: str) -> None:
    for key in source:
        if key not in known:
            _wrong(path, source.lines[key], f"{what} has no `{key}`", did_you_mean(key, known))


def _wrong(path: Path, line: int, message: str, hint: str | None = None) -> NoReturn:
    raise Invalid(message, hint=hint, file=str(path), line=line)
