"""`mandor describe`: one object in detail: its state, its settings, its events."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mandor.cli import advice, log_sinks, machines, pools, receivers, tables
from mandor.cli.advice import NOTHING, Advice
from mandor.cli.commands.drain import shown
from mandor.cli.commands.events import events_about, when
from mandor.cli.commands.get import get_one
from mandor.cli.kinds import Kind, find_kind, split_names
from mandor.cli.options import complete_kind_or_name, connected, namespace_option
from mandor.cli.output import age, aligned

if TYPE_CHECKING:
    from mandor.client.sync import Client

Object = dict[str, Any]
Facts = list[tuple[str, str]]
EVENTS_SHOWN = 15
INSTANCES_SHOWN = 30


class Details(NamedTuple):
    """The part of a description that is specific to a kind."""

    facts: Facts = []
    lines: list[str] = []
    """Lines below the facts."""
    advice: Advice = NOTHING
    instances: list[str] = []
    """Instances whose events are included."""


@click.command("describe")
@click.argument("words", metavar="KIND NAME...", nargs=-1, required=True, shell_complete=complete_kind_or_name)
@namespace_option
@connected
def describe_command(client: "Client", words: tuple[str, ...], namespace: str) -> None:
    """Show one object in detail, with its events.

    The description starts with the current state and, if something is wrong, the next step.
    """
    kind, names = split_names(words)
    if not names:
        raise click.UsageError(f"give the name of a {kind.name}")
    here = namespace if kind.namespaced else None
    for number, name in enumerate(names):
        if number:
            click.echo()
        item = get_one(client, kind, name, here)
        for line in describe(client, kind, item):
            click.echo(line)


def describe(client: "Client", kind: Kind, item: Object) -> list[str]:
    meta = item["meta"]
    namespace = meta.get("namespace", "")
    full = f"{kind.name} {namespace}/{meta['name']}" if namespace else f"{kind.name} {meta['name']}"
    details = _DETAILS.get(kind.name, _describe_spec)(client, item)
    now = [("status", details.advice.now), ("next step", details.advice.do)] if details.advice.now else _why(item)
    lines = [f"{full}: {_headline(kind, item)}", *_facts([*now, *_about(item), *details.facts]), *details.lines]
    about = {full, *(f"instance {namespace}/{name}" for name in details.instances)}
    events = events_about(client, about, namespace or None) if kind.name != "event" else []
    lines += ["", "events:"] if events else ["", "no events"]
    return [*lines, *aligned(_event_rows(events, full))]


def _event_rows(events: list[Object], own: str) -> list[tuple[str, ...]]:
    """Merge consecutive events of the same kind into one row with a count; events about instances show their names."""
    merged: list[tuple[Object, int]] = []
    for event in events:
        count = event["spec"].get("count", 1)
        if merged and _alike(merged[-1][0], event):
            count += merged.pop()[1]
        merged.append((event, count))
    return [
        (
            f"  {age(when(event), time.time())} ago",
            event["spec"]["reason"] + (f" x{count}" if count > 1 else ""),
            ("" if (about := event["spec"]["about"]) == own else f"{about.rpartition('/')[2]}: ")
            + " ".join(event["spec"]["message"].split()),
        )
        for event, count in merged[-EVENTS_SHOWN:]
    ]


def _alike(first: Object, second: Object) -> bool:
    return all(first["spec"][key] == second["spec"][key] for key in ("about", "reason"))


def _headline(kind: Kind, item: Object) -> str:
    status = item.get("status") or {}
    since = f", for {age(status['since'], time.time())}" if status.get("since") else ""
    return _state(kind, item, status) + since


def _state(kind: Kind, item: Object, status: Object) -> str:
    phase = str(status.get("phase") or status.get("state") or "exists")
    if kind.name == "workload":
        if "schedule" in item["spec"]:
            next_at = status.get("next_at", 0.0)
            return phase + (f", runs next at {tables.moment(next_at)} UTC" if next_at else "")
        if item["spec"].get("type") == "batch":
            return f"{phase}, {status.get('succeeded', 0)} of {status.get('wanted', 0)} done"
        return f"{phase}, {status.get('ready', 0)} of {status.get('wanted', 0)} ready"
    if kind.name == "instance":
        node = item["spec"].get("node")
        ready = ", ready" if status.get("ready") else ", not ready" if phase == "Running" else ""
        return f"{phase}{ready}{f', on {node}' if node else ''}"
    if kind.name == "node":
        drain = status.get("drain")
        if drain:
            return f"{phase}, {'drained' if drain['phase'] == 'Drained' else 'being drained'}"
        return phase + (", cordoned" if item["spec"].get("cordoned") else "")
    return phase


def _why(item: Object) -> Facts:
    status = item.get("status") or {}
    return [("reason", " ".join(filter(None, [status.get("reason", ""), status.get("message", "")])))]


def _about(item: Object) -> Facts:
    meta = item["meta"]
    return [
        ("labels", tables.labels(item).removeprefix("-")),
        ("created", f"{age(meta.get('created_at', 0.0), time.time())} ago, version {meta.get('version', 0)}"),
    ]


def _facts(pairs: Facts) -> list[str]:
    """Format `  word:  value` lines; pairs without a value are omitted."""
    return aligned([(f"  {word}:", " ".join(str(text).split())) for word, text in pairs if str(text).strip()])


# Workloads.


def _describe_workload(client: "Client", item: Object) -> Details:
    spec, meta = item["spec"], item["meta"]
    batch = spec.get("batch", {})
    kind = spec.get("type", "service")
    detail = ""
    if kind == "batch":
        detail = f", {batch.get('completions', 1)} completions, {batch.get('parallelism') or 1} at a time"
        if batch.get("per_node"):
            detail = ", once on every matching node"
            detail += f", {batch['parallelism']} at a time" if batch.get("parallelism") else ""
    facts = [
        ("type", kind + detail),
        ("schedule", _schedule(spec.get("schedule"))),
        ("run of", spec.get("run_of", "")),
        ("release", release := item["status"].get("release", "")),
        *_images(_release(client, release, meta.get("namespace")), "images"),
        ("indices", _indices(item)),
        ("rollout", "" if _first(item) else rollout_line(item)),
        ("healthy releases", ", ".join((item["status"].get("rollout") or {}).get("proven", ())[-3:])),
        ("priority", str(spec.get("priority", ""))),
    ]
    lines = []
    for name, group in spec["groups"].items():
        lines += _describe_group(name, group, service=kind == "service")
        lines += _describe_scaling(group.get("autoscale"), item["status"].get("autoscale", {}).get(name))
    if "schedule" in spec:
        return Details(facts, lines + _describe_runs(client, item))
    items, _ = client.list("instances", {"namespace": meta.get("namespace")})
    own = [each for each in items if each["spec"]["workload"] == meta["name"]]
    lines += ["", f"instances: {len(own)}"]
    if own:
        shown = tables.columns("instance")
        rows = [[column.title for column in shown], *(tables.row(shown, each) for each in own[:INSTANCES_SHOWN])]
        lines += [f"  {line}" for line in aligned(rows)]
        if len(own) > INSTANCES_SHOWN:
            lines.append(f"  … and {len(own) - INSTANCES_SHOWN} more")
    return Details(facts, lines, advice.of_workload(item, own), [each["meta"]["name"] for each in own])


def _release(client: "Client", name: str, namespace: str | None) -> Object:
    """Return the release; empty if there is none or the caller may not read it."""
    from mandor.errors import Forbidden, NotFound

    try:
        return client.get("releases", name, namespace) if name else {}
    except (Forbidden, NotFound):
        return {}


def _images(item: Object, word: str) -> Facts:
    """Return the pinned digests of the images of a release or an instance."""
    found = (item.get("status") or {}).get("images") or {}
    return [(word, ", ".join(f"{image} = {digest}" for image, digest in found.items()))]


def _describe_release(client: "Client", item: Object) -> Details:
    spec = item["spec"]
    named = {
        task["image"]
        for group in spec["groups"].values()
        for form in (group, *group.get("alternatives", ()))
        for task in (form, *form.get("tasks", {}).values())
        if task.get("image")
    }
    pinned = (item.get("status") or {}).get("images") or {}
    by_tag = sorted(image for image in named if image not in pinned and "@" not in image)
    facts = [
        ("workload", f"{spec['workload']}, release {spec['sequence']}"),
        *_images(item, "images"),
        ("not pinned", ", ".join(by_tag)),
    ]
    return Details(facts, _spec(item))


def _first(item: Object) -> bool:
    """Return whether this is the first release, which starts without a rollout."""
    rollout = item["status"].get("rollout") or {}
    return str(rollout.get("release", "")).endswith(".1") and rollout.get("phase", "Progressing") in {
        "Progressing",
        "Done",
    }


def _indices(item: Object) -> str:
    """Summarize the completed indices of an indexed batch."""
    if not (item["spec"].get("batch") or {}).get("indexed"):
        return ""
    found = item["status"].get("indices", {})
    many = len(item["spec"]["groups"]) > 1
    done = "; ".join(f"{name} {indices}" if many else indices for name, indices in found.items())
    return f"{done or 'none'} of {item['status'].get('wanted', 0)} done"


def rollout_line(item: Object) -> str:
    """Summarize a rollout in one line, with its deadline; empty if there is none."""
    rollout = item["status"].get("rollout")
    if not rollout:
        return ""
    phase, now = rollout.get("phase", "Progressing"), time.time()
    if phase == "Done":
        return f"done, {age(rollout.get('ended_at', 0.0), now)} ago"
    left = rollout.get("fails_at", 0.0) - now
    older = any(name != rollout["release"] for name in rollout.get("proven", ()))
    back = all(group.get("update", {}).get("auto_rollback", True) for group in item["spec"]["groups"].values())
    word = "rolls back" if phase == "Progressing" and older and back else "fails"
    return f"{phase}: {rollout.get('message', '')}" + (f"; {word} in {age(now - left, now)}" if left > 0 else "")


def _schedule(schedule: Object | None) -> str:
    if schedule is None:
        return ""
    lines = schedule["cron"]
    paused = ", paused" if schedule.get("paused") else ""
    overlap = schedule.get("overlap", "forbid")
    return f"{'; '.join(lines)} ({schedule.get('timezone', 'UTC')}), overlap: {overlap}{paused}"


def _describe_runs(client: "Client", item: Object) -> list[str]:
    meta = item["meta"]
    items, _ = client.list("workloads", {"namespace": meta.get("namespace")})
    runs = [each for each in items if each["spec"].get("run_of") == meta["name"]]
    lines = ["", f"runs: {len(runs)}"]
    if runs:
        runs.sort(key=lambda each: each["meta"].get("created_at", 0.0), reverse=True)
        rows = [
            (
                each["meta"]["name"],
                each["status"]["phase"],
                f"{age(each['meta'].get('created_at', 0.0), time.time())} ago",
            )
            for each in runs[:INSTANCES_SHOWN]
        ]
        lines += [f"  {line}" for line in aligned([("NAME", "PHASE", "STARTED"), *rows])]
    return lines


def _describe_group(name: str, group: Object, *, service: bool) -> list[str]:
    count = f" x{group.get('replicas', 1)}" if service else ""
    placement = group.get("placement", {})
    facts = [
        ("engine", " or ".join(group.get("engine", ())) or "any"),
        ("ports", ", ".join(f"{key} {_port(port)}" for key, port in group.get("ports", {}).items())),
        ("volumes", ", ".join(_volume(key, volume) for key, volume in group.get("volumes", {}).items())),
        ("update", ", ".join(f"{key} {value}" for key, value in group.get("update", {}).items())),
        ("depends on", ", ".join(f"{key} {value}" for key, value in group.get("depends_on", {}).items())),
        ("pool", placement.get("pool", "")),
        ("where", "; ".join(_where(rule) for rule in placement.get("where", ()))),
    ]
    for task_name, task in group["tasks"].items():
        role = f" ({task['role']})" if task.get("role", "main") != "main" else ""
        facts += [
            (f"task {task_name}{role}", _program(task)),
            ("  requests", _resources(task.get("resources", {}))),
            ("  limits", _resources(task.get("resources", {}).get("limits", {}))),
            ("  health", _probe(task.get("health"))),
            ("  readiness", _probe(task.get("readiness"))),
        ]
    facts += [(f"alternative {n}", _alternative(each)) for n, each in enumerate(group.get("alternatives", ()), 1)]
    return ["", f"group {name}{count}:", *_facts(facts)]


def _describe_scaling(scaling: Object | None, status: Object | None) -> list[str]:
    if not scaling:
        return []
    readings = status.get("readings", ()) if status else ()
    last = ""
    if status and status.get("last_at"):
        last = f"{age(status['last_at'], time.time())} ago, {status['last']}"
    shown = ", ".join(tables.reading(each) for each in readings) or "no measurements yet"
    why = ": ".join(filter(None, [status["reason"], status.get("message", "")])) if status else ""
    return _facts(
        [
            ("autoscale", f"{scaling.get('min', 1)} to {scaling['max']} instances, {shown}"),
            ("  status", why),
            ("  last change", last),
            *(("  unknown", f"{each['name']}: {each['problem']}") for each in readings if each.get("problem")),
        ]
    )


def _alternative(each: Object) -> str:
    tasks = [f"task {name}: {_program(task)}" for name, task in each.get("tasks", {}).items()]
    words = [" or ".join(each.get("engine", ())), _program(each), *tasks, _resources(each.get("resources", {}))]
    return "; ".join(filter(None, words)) or "other settings"


def _port(port: Object) -> str:
    return " ".join(filter(None, [str(port.get("port", "")), f"(host {port['host']})" if port.get("host") else ""]))


def _volume(name: str, volume: Object) -> str:
    words = [volume.get("type", "local"), volume.get("path", ""), volume.get("size", "")]
    each = "one per instance" if volume.get("per_instance") else ""
    return f"{name} ({', '.join(filter(None, [*words, each]))})"


def _where(rule: Object) -> str:
    text = rule.get("rule") or " or ".join(rule.get("any", ()))
    return f"{text} ({rule['strength']})" if rule.get("strength") else str(text)


def _program(task: Object) -> str:
    words = [*([task["image"]] if task.get("image") else []), *task.get("command", ()), *task.get("args", ())]
    text = " ".join(" ".join(str(word).split()) for word in words)
    return text if len(text) <= 100 else text[:100] + "…"


def _resources(found: Object) -> str:
    return ", ".join(f"{key} {value}" for key, value in found.items() if not isinstance(value, dict))


def _probe(probe: Object | None) -> str:
    if not probe:
        return ""
    asked = next(f"{key} {probe[key]}" for key in ("http", "tcp", "command") if key in probe)
    return f"{asked} every {probe.get('interval', '10s')}"


# Instances and nodes.


def _describe_instance(client: "Client", item: Object) -> Details:
    spec, status = item["spec"], item["status"]
    facts = [
        ("workload", f"{spec['workload']}, group {spec.get('group', 'main')}, release {spec['release']}"),
        ("engine", status.get("engine", "")),
        *_images(item, "images"),
        ("address", status.get("address", "")),
        ("ports", tables.ports(item).removeprefix("-")),
        ("volumes", ", ".join(spec.get("volumes", ()))),
        ("started", f"{age(status['started_at'], time.time())} ago" if status.get("started_at") else ""),
        ("restarts", str(status.get("restarts") or "")),
        ("exit code", str(status.get("exit_code", ""))),
        ("nominated node", status.get("nominated", "")),
        ("placed as", f"alternative {spec['variant']}" if spec.get("variant") else ""),
        ("relaxed rules", "; ".join(spec.get("relaxed", ()))),
        ("earlier failures", _failures(spec)),
        ("uid", item["meta"].get("uid", "")),
    ]
    lines: list[str] = []
    tasks = status.get("tasks", ())
    if tasks:
        rows = [("  TASK", "PHASE", "RESTARTS", "EXIT", "REASON")]
        rows += [
            (
                f"  {task['name']}",
                task["phase"],
                str(task.get("restarts", 0)),
                str(task.get("exit_code", "-")),
                task.get("reason") or "-",
            )
            for task in tasks
        ]
        lines = ["", "tasks:", *aligned(rows)]
    return Details(facts, lines, advice.of_instance(item))


def _port_range(ports: Object) -> str:
    from mandor.model.node import USUAL_PORTS

    whole = f"{ports.get('first', USUAL_PORTS.first)}-{ports.get('last', USUAL_PORTS.last)} for `auto`"
    taken = ", ".join(map(str, ports.get("taken", ())))
    return whole + (f"; in use by other programs: {taken}" if taken else "")


def _failures(spec: Object) -> str:
    return f"{spec['attempt']}, on {', '.join(spec.get('avoid', ()))}" if spec.get("attempt") else ""


def _describe_node(client: "Client", item: Object) -> Details:
    spec, status = item["spec"], item["status"]
    capacity = status.get("capacity", {})
    cpu, memory = tables.cores(capacity.get("cpu_milli", 0)), tables.amount(capacity.get("memory_bytes", 0))
    facts = [
        ("pool", spec.get("pool", "default")),
        ("address", status.get("address", "")),
        ("engines", ", ".join(_engine(*each) for each in sorted(status.get("engines", {}).items())) or "none"),
        *((f"  {name}", _abilities(engine)) for name, engine in sorted(status.get("engines", {}).items())),
        ("capacity", f"cpu {cpu}, memory {memory}"),
        ("ports", _port_range(status.get("ports", {}))),
        ("taints", ", ".join(map(tables.taint, spec.get("taints", ())))),
        ("short of", ", ".join(status.get("pressure", ()))),
        ("maintenance", _maintenance(status.get("maintenance"))),
        ("drain", _drain(spec, status)),
        *((f"log sink {name}", log_sinks.health(each)) for name, each in sorted(status.get("log_sinks", {}).items())),
        ("facts", ", ".join(f"{key} {value}" for key, value in sorted(status.get("facts", {}).items()))),
        ("agent", status.get("agent_version", "")),
    ]
    items, _ = client.list("instances", {"node": item["meta"]["name"]})
    from mandor.model.node import INSTANCES_MAX

    most = item["meta"].get("labels", {}).get(INSTANCES_MAX) or status.get("facts", {}).get(INSTANCES_MAX)
    lines = ["", f"instances: {len(items)}" + (f" of at most {most}" if most else "")]
    if items:
        shown = tables.columns("instance", namespace=True)
        rows = [[column.title for column in shown], *(tables.row(shown, each) for each in items[:INSTANCES_SHOWN])]
        lines += [f"  {line}" for line in aligned(rows)]
        if len(items) > INSTANCES_SHOWN:
            lines.append(f"  … and {len(items) - INSTANCES_SHOWN} more")
    return Details(facts, lines, advice.of_node(item))


def _describe_volume(client: "Client", item: Object) -> Details:
    spec, status = item["spec"], item.get("status", {})
    keeps = "kept" if spec.get("reclaim", "keep") == "keep" else "deleted"
    rules = [f"{key} {spec[key]}" for key in ("node", "pool") if key in spec]
    return Details(
        [
            ("node", status.get("node", "") or "none yet"),
            ("path", status.get("path", "") or "not created yet"),
            ("size", f"{spec['size']} (counted, not enforced)" if spec.get("size") else ""),
            (
                "workload",
                f"{status['workload']}; the volume is {keeps} when the workload is deleted"
                if status.get("workload")
                else "",
            ),
            ("used by", ", ".join(status.get("used_by", ())) or "no instance"),
            ("may be on", "; ".join([*rules, *(_where(rule) for rule in spec.get("where", ()))])),
            (
                "on loss",
                "recreated empty on another node" if spec.get("on_loss") == "recreate" else "waits for its node",
            ),
            ("recreated", f"{status['incarnation']} times" if status.get("incarnation") else ""),
        ]
    )


def _engine(name: str, engine: Object) -> str:
    down = "" if engine.get("up", True) else f" (down: {engine.get('message', '')})"
    return f"{name} {engine.get('version', '')}".strip() + down


def _abilities(engine: Object) -> str:
    """List the capabilities of an engine, as named in node rules."""
    limits = [f"limits.{name}" for name in engine.get("limits", ())]
    return ", ".join(
        [*(["images"] if engine.get("images") else []), *sorted(engine.get("extras", ())), *sorted(limits)]
    )


def _maintenance(turn: Object | None) -> str:
    if not turn:
        return ""
    how = "kept empty" if turn.get("empty_since") else "draining"
    return f"{how}; reopened by {tables.moment(turn['until'])} UTC"


def _drain(spec: Object, status: Object) -> str:
    if not status.get("drain"):
        return ""
    wanted, phase = spec.get("drain", {}), status["drain"]["phase"]
    deadline = f", deadline {wanted['deadline']}" if wanted.get("deadline") else ""
    force = ", forced" if wanted.get("force") else ""
    since = age(status["drain"]["since"], time.time())
    return f"{phase} (for {since}{deadline}{force}): {shown(status['drain'])}"


def _describe_spec(client: "Client", item: Object) -> Details:
    return Details(lines=_spec(item))


def _spec(item: Object) -> list[str]:
    from mandor.lib.yaml12 import dump

    spec = item.get("spec")
    return ["", "spec:", *(f"  {line}" for line in dump(spec).splitlines())] if spec else []


def _describe_pool(client: "Client", item: Object) -> Details:
    facts, lines = pools.describe_scaling(item)
    return Details(facts, [*lines, *_spec(item)], advice.of_pool(item))


def _describe_receiver(client: "Client", item: Object) -> Details:
    return Details([], [*receivers.describe_deliveries(item), *_spec(item)], NOTHING)


def _describe_task(client: "Client", item: Object) -> Details:
    return Details(machines.task_facts(item), machines.steps(item))


def _describe_spare(client: "Client", item: Object) -> Details:
    return Details(machines.spare_facts(item), [*machines.spare_machines(item), *machines.steps(item)])


def _describe_log_sink(client: "Client", item: Object) -> Details:
    nodes, _ = client.list("nodes", {})
    return Details([], [*log_sinks.describe_health(item, nodes), *_spec(item)], NOTHING)


def _describe_service(client: "Client", item: Object) -> Details:
    from mandor.cli import service_details

    return Details(service_details.facts(item), [*service_details.traffic(client, item), *_spec(item)])


_DETAILS: dict[str, Callable[["Client", Object], Details]] = {
    find_kind("workload").name: _describe_workload,
    find_kind("instance").name: _describe_instance,
    find_kind("release").name: _describe_release,
    find_kind("node").name: _describe_node,
    find_kind("volume").name: _describe_volume,
    find_kind("node-pool").name: _describe_pool,
    find_kind("webhook").name: _describe_receiver,
    find_kind("event-bus").name: _describe_receiver,
    find_kind("log-sink").name: _describe_log_sink,
    find_kind("task").name: _describe_task,
    find_kind("spare").name: _describe_spare,
    find_kind("service").name: _describe_service,
}
