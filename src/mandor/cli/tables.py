"""Columns of the table of each kind."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from mandor.cli import log_sinks, networks, pools, receivers, routes, services
from mandor.cli.output import age
from mandor.cli.roles import rule_text

Object = dict[str, Any]


class Column(NamedTuple):
    title: str
    cell: Callable[[Object], Any]
    wide: bool = False  # shown only with -o wide


def _status(name: str, otherwise: Any = "-") -> Callable[[Object], Any]:
    return lambda item: item.get("status", {}).get(name) or otherwise


def _spec(name: str, otherwise: Any = "-") -> Callable[[Object], Any]:
    return lambda item: item.get("spec", {}).get(name) or otherwise


def _words(name: str, otherwise: str = "-") -> Callable[[Object], Any]:
    return lambda item: ",".join(item["spec"].get(name) or ()) or otherwise


def _name(item: Object) -> str:
    return str(item["meta"]["name"])


def _age(item: Object) -> str:
    return age(item["meta"].get("created_at", 0.0), time.time())


def labels(item: Object) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(item["meta"].get("labels", {}).items())) or "-"


def _node_phase(item: Object) -> str:
    words = [str(item["status"]["phase"])]
    if item["spec"].get("cordoned"):
        words.append("cordoned")
    if item["status"].get("pressure"):
        words.append(f"short of {'+'.join(item['status']['pressure'])}")
    if item["status"].get("maintenance"):
        words.append("maintenance")
    drain = item["status"].get("drain")
    if drain:
        total, left = drain.get("total", 0), drain.get("left", 0)
        words.append("drained" if drain["phase"] == "Drained" else f"draining {total - left}/{total}")
    return ",".join(words)


def _form(item: Object) -> str:
    variant = item["spec"].get("variant", 0)
    return f"alternative {variant}" if variant else "-"


def _engines(item: Object) -> str:
    found = item["status"].get("engines", {})
    return (
        ",".join(name if engine.get("up", True) else f"{name} (down)" for name, engine in sorted(found.items())) or "-"
    )


def taint(found: Object) -> str:
    value = f"={found['value']}" if found.get("value") else ""
    return f"{found['key']}{value}:{found.get('effect', 'NoSchedule')}"


def cores(milli: int) -> str:
    from mandor.lib.quantity import Cpu

    return str(Cpu(milli))


def amount(count: int) -> str:
    """Format bytes with one decimal."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f}{unit}" if unit == "B" else f"{size:.1f}{unit}"
        size /= 1024
    raise AssertionError("unreachable")


def _capacity(name: str, show: Callable[[int], str]) -> Callable[[Object], Any]:
    return lambda item: show(item["status"].get("capacity", {}).get(name, 0))


def _used(name: str, show: Callable[[int], str]) -> Callable[[Object], Any]:
    """Format the usage that the node last reported; `-` if there is none."""

    def shown(item: Object) -> str:
        usage = item["status"].get("usage")
        return "-" if usage is None else show(usage.get(name, 0))

    return shown


def _devices(item: Object) -> str:
    found = item["status"].get("capacity", {}).get("devices", {})
    return ",".join(f"{kind} {count}" for kind, count in sorted(found.items())) or "-"


def _fact(name: str) -> Callable[[Object], Any]:
    return lambda item: item["status"].get("facts", {}).get(name, "-")


def _progress(item: Object) -> str:
    status = item["status"]
    if "schedule" in item["spec"]:
        return "-"
    done = status.get("succeeded", 0) if item["spec"].get("type") == "batch" else status.get("ready", 0)
    return f"{done}/{status.get('wanted', 0)}"


def _rollout(item: Object) -> str:
    """Summarize the progress of a rollout; `-` if none is active and the last one succeeded."""
    rollout = item["status"].get("rollout") or {}
    phase = rollout.get("phase", "Progressing") if rollout else "Done"
    if phase == "Done":
        return "-"
    if phase in {"Failed", "RolledBack"}:
        return {"Failed": "failed", "RolledBack": f"rolled back to {rollout['target']}"}[phase]
    groups = rollout.get("groups", {}).values()
    far = f"{sum(each.get('healthy', 0) for each in groups)}/{sum(each.get('wanted', 0) for each in groups)}"
    word = {"Progressing": "to", "RollingBack": "back to", "Paused": "paused, to", "Waiting": "awaiting promotion, to"}[
        phase
    ]
    return f"{far} {word} {rollout['target']}"


def _scales(item: Object) -> str:
    """Summarize autoscaling: limits and readings; `-` without autoscaling."""
    found = []
    for name, group in item["spec"].get("groups", {}).items():
        scaling = group.get("autoscale")
        if scaling:
            status = item["status"].get("autoscale", {}).get(name, {})
            readings = " ".join(reading(each) for each in status.get("readings", ()))
            found.append(" ".join(filter(None, [f"{scaling.get('min', 1)}-{scaling['max']}", readings])))
    return ", ".join(found) or "-"


def reading(each: Object) -> str:
    """Format a reading with its target: `cpu 45%/70%`."""
    unit = "" if each["name"] == "metric" else "%"
    now = "?" if each.get("current") is None else f"{each['current']:g}{unit}"
    return f"{each['name']} {now}/{each['target']:g}{unit}"


def _ready(item: Object) -> str:
    return "yes" if item["status"].get("ready") else "no"


def ports(item: Object) -> str:
    """Format the ports of an instance as `NAME HOST:PORT→PORT`; before the start, the chosen host ports."""
    host = item["status"].get("host", "")
    shown = [_port(each, host) for each in item["status"].get("ports", ())]
    chosen = [f"{name} :{number}" for name, number in (item["spec"].get("ports") or {}).items()]
    return ", ".join(shown or chosen) or "-"


def _port(port: Object, host: str) -> str:
    kind = "" if port.get("protocol", "tcp") == "tcp" else f"/{port['protocol']}"
    inside = port["port"]
    if not port.get("host"):
        return f"{port['name']} {inside}{kind}"
    leads = f"→{inside}" if inside != port["host"] else ""
    return f"{port['name']} {host}:{port['host']}{leads}{kind}"


def _stopping(item: Object) -> str:
    reason = item["status"].get("reason", "")
    stop = item["spec"].get("stop")
    if stop and item["status"]["phase"] not in {"Stopped", "Failed", "Succeeded"}:
        return f"stopping: {stop['reason']}"
    return reason or "-"


def _score(item: Object) -> str:
    """Format the score of the chosen node and its lead over the next one."""
    totals = [each["total"] for each in item["spec"].get("best", ())]
    if not item["spec"].get("node") or not totals:
        return "-"
    return f"{totals[0]} (+{totals[0] - totals[1]})" if len(totals) > 1 else str(totals[0])


def _rejection(item: Object) -> str:
    return "-" if item["spec"].get("node") else item["spec"].get("message", "-")


def _last(item: Object) -> str:
    spec = item["spec"]
    return age(spec.get("last_at") or spec.get("first_at") or item["meta"].get("created_at", 0.0), time.time())


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S") if at else "-"


def _expires(item: Object) -> str:
    at = item["spec"].get("expires_at", 0.0)
    return moment(at) if at else "never"


def _uses(item: Object) -> str:
    """Number of nodes that can still join with a join token."""
    left = item["spec"].get("join", {}).get("uses")
    return "-" if left is None else str(left)


def _joins(item: Object) -> str:
    """Format what a join token sets on nodes: `pool=gpu,rack=7`."""
    terms = item["spec"].get("join", {})
    found = {name: terms[name] for name in ("node", "pool") if terms.get(name)}
    return ",".join(f"{key}={value}" for key, value in (found | terms.get("labels", {})).items()) or "-"


def _of_quota(name: str) -> Callable[[Object], str]:
    """Format usage and limit: `3/20`."""

    def shown(item: Object) -> str:
        most = item["spec"].get(name)
        return "-" if most is None else f"{item.get('status', {}).get('used', {}).get(name, 0)}/{most}"

    return shown


def _devices_of_quota(item: Object) -> str:
    used = item.get("status", {}).get("used", {}).get("devices", {})
    most = item["spec"].get("devices", {})
    return ",".join(f"{kind} {used.get(kind, 0)}/{count}" for kind, count in sorted(most.items())) or "-"


def _amounts(*path: str) -> Callable[[Object], str]:
    """Format the amounts at a path of the spec: `cpu 2, memory 4Gi`."""

    def shown(item: Object) -> str:
        found = item["spec"]
        for step in path:
            found = found.get(step, {})
        return ", ".join(f"{name} {value}" for name, value in found.items() if not isinstance(value, dict)) or "-"

    return shown


def _windows(item: Object) -> str:
    return "; ".join(each["cron"] for each in item["spec"].get("maintenance", ())) or "-"


def _window(item: Object) -> str:
    status = item.get("status", {})
    if status.get("opened_at"):
        return f"open until {moment(status['until'])} UTC"
    return f"opens {moment(status['next_at'])} UTC" if status.get("next_at") else "-"


def _slots(item: Object) -> str:
    held = item.get("status", {}).get("held", {})
    return f"{sum(held.values())}/{item['spec'].get('count', 1)}"


def _moves(item: Object) -> str:
    moves = item.get("status", {}).get("moves", ())
    over = sum(each.get("state") in {"Moved", "CalledOff"} for each in moves)
    return f"{over}/{len(moves)}"


NAME = Column("NAME", _name)
AGE = Column("AGE", _age)
LABELS = Column("LABELS", labels, wide=True)

RECEIVER = (
    NAME,
    Column("STATE", receivers.state),
    Column("URL", _spec("url")),
    Column("EVENTS", receivers.patterns("events")),
    Column("NAMESPACES", receivers.patterns("namespaces"), wide=True),
    Column("DELIVERED", receivers.counted("delivered")),
    Column("DROPPED", receivers.counted("given_up")),
    Column("MESSAGE", receivers.says),
    AGE,
    LABELS,
)

COLUMNS: dict[str, tuple[Column, ...]] = {
    "node": (
        NAME,
        Column("PHASE", _node_phase),
        Column("POOL", _spec("pool", "default")),
        Column("ENGINES", _engines),
        Column("CPU", _capacity("cpu_milli", cores)),
        Column("MEMORY", _capacity("memory_bytes", amount)),
        AGE,
        Column("CPU USED", _used("cpu_milli", cores), wide=True),
        Column("MEMORY USED", _used("memory_bytes", amount), wide=True),
        Column("DEVICES", _devices, wide=True),
        Column("ADDRESS", _status("address"), wide=True),
        Column("OS", _fact("os"), wide=True),
        Column("ARCH", _fact("arch"), wide=True),
        Column("KERNEL", _fact("kernel.version"), wide=True),
        Column("VERSION", _status("agent_version"), wide=True),
        Column("REASON", _status("reason"), wide=True),
        Column("TAINTS", lambda item: ",".join(map(taint, item["spec"].get("taints", ()))) or "-", wide=True),
        LABELS,
    ),
    "workload": (
        NAME,
        Column("TYPE", _spec("type", "service")),
        Column("PHASE", _status("phase")),
        Column("READY", _progress),
        Column("ROLLOUT", _rollout),
        Column("AUTOSCALE", _scales),
        Column("RUNNING", _status("running", 0)),
        Column("PENDING", _status("pending", 0)),
        Column("FAILED", _status("failed", 0)),
        AGE,
        Column("RELEASE", _status("release"), wide=True),
        Column("MESSAGE", _status("message"), wide=True),
        LABELS,
    ),
    "instance": (
        NAME,
        Column("PHASE", _status("phase")),
        Column("READY", _ready),
        Column("RESTARTS", _status("restarts", 0)),
        Column("NODE", _spec("node")),
        Column("PORTS", ports),
        Column("AGE", _age),
        Column("REASON", _stopping),
        Column("RELEASE", _spec("release"), wide=True),
        Column("RELAXED", lambda item: "; ".join(item["spec"].get("relaxed", ())) or "-", wide=True),
        Column("FORM", _form, wide=True),
        Column("ENGINE", _status("engine"), wide=True),
        Column("ADDRESS", _status("address"), wide=True),
        Column("MESSAGE", _status("message"), wide=True),
        Column("UID", lambda item: item["meta"].get("uid", "-"), wide=True),
    ),
    "release": (
        NAME,
        Column("WORKLOAD", _spec("workload")),
        Column("SEQUENCE", _spec("sequence")),
        Column("HASH", _spec("hash")),
        AGE,
        Column("CAUSE", _spec("cause"), wide=True),
    ),
    "namespace": (
        NAME,
        Column("LEVEL", lambda item: item["spec"].get("level", "restricted")),
        Column("ENGINES", _words("engines", "all")),
        Column("USERS", _words("users", "all")),
        Column("PRIORITY", lambda item: item["spec"].get("priority_most", "any")),
        AGE,
        LABELS,
    ),
    "decision": (
        NAME,
        Column("NODE", _spec("node")),
        Column("AGO", lambda item: age(item["spec"].get("at", 0.0), time.time())),
        Column("ATTEMPTS", _spec("attempts", 1)),
        Column("SCORE", _score),
        Column("FORM", _spec("form"), wide=True),
        Column("RELAXED", _words("relaxed")),
        Column("REJECTED", _rejection),
        Column("PROFILE", _spec("profile"), wide=True),
        Column("PREEMPTED", _words("victims"), wide=True),
        Column("PLUGINS", _words("versions"), wide=True),
    ),
    "volume": (
        NAME,
        Column("PHASE", lambda item: item.get("status", {}).get("phase") or "Pending"),
        Column("NODE", _status("node")),
        Column("SIZE", _spec("size")),
        Column("RECLAIM", _spec("reclaim", "keep")),
        Column("USED BY", lambda item: ",".join(item.get("status", {}).get("used_by", ())) or "-"),
        AGE,
        Column("WORKLOAD", _status("workload"), wide=True),
        Column("PATH", _status("path"), wide=True),
        Column("MESSAGE", _status("message"), wide=True),
        LABELS,
    ),
    "priority-class": (
        NAME,
        Column("VALUE", _spec("value", 0)),
        Column("PREEMPTS", _spec("preempt", "lower")),
        Column("DEFAULT", lambda item: "yes" if item["spec"].get("default") else "no"),
        AGE,
        Column("DESCRIPTION", _spec("description"), wide=True),
        LABELS,
    ),
    "quota": (
        NAME,
        *(Column(name.upper(), _of_quota(name)) for name in ("cpu", "memory", "disk", "instances")),
        Column("DEVICES", _devices_of_quota),
        Column("PRIORITY-CLASS", _spec("priority_class")),
        AGE,
        LABELS,
    ),
    "node-pool": (
        NAME,
        Column("MACHINES", pools.machines),
        Column("MAINTENANCE", _windows),
        Column("WINDOW", _window),
        Column("DONE", lambda item: len(item.get("status", {}).get("done", ()))),
        Column("SKIPPED", lambda item: ",".join(item.get("status", {}).get("left_out", ())) or "-"),
        AGE,
        LABELS,
    ),
    "reservation": (
        NAME,
        Column("PHASE", lambda item: item.get("status", {}).get("phase", "Waiting")),
        Column("HELD", _slots),
        *(Column(name.upper(), _spec(name)) for name in ("start", "end")),
        Column("FOR", lambda item: item["spec"].get("workload") or "the namespace"),
        Column("MESSAGE", lambda item: item.get("status", {}).get("message") or "-"),
        AGE,
        LABELS,
    ),
    "route": (NAME, *(Column(*each) for each in (*routes.COLUMNS, routes.WIDE)), AGE, LABELS),
    "network": (NAME, *(Column(*each) for each in networks.COLUMNS), AGE, LABELS),
    "service": (NAME, *(Column(*each) for each in services.COLUMNS), AGE, LABELS),
    "rebalance": (
        NAME,
        Column("PHASE", lambda item: item.get("status", {}).get("phase", "Planning")),
        Column("MOVES", _moves),
        Column("MOVED", lambda item: item.get("status", {}).get("moved", 0)),
        Column("EVERY", _spec("every")),
        Column("MIN GAIN", _spec("min_gain", 20)),
        Column("MESSAGE", lambda item: item.get("status", {}).get("message") or "-"),
        AGE,
        LABELS,
    ),
    "task": (
        NAME,
        Column("STATE", lambda item: item.get("status", {}).get("state", "Queued")),
        Column("HOST", _status("node")),
        Column("ADDRESS", _status("address")),
        Column("CPU", _spec("cpu")),
        Column("MEMORY", lambda item: amount(item["spec"]["memory_mib"] << 20)),
        Column("POOL", _spec("pool", "default")),
        Column("ATTEMPTS", lambda item: item.get("status", {}).get("attempts", 0)),
        AGE,
        Column("DEDICATED", lambda item: "yes" if item["spec"].get("dedicated") else "no", wide=True),
        Column("PURPOSE", _spec("purpose", "place"), wide=True),
        Column("MESSAGE", _status("error")),
        LABELS,
    ),
    "inventory": (
        NAME,
        Column("SOURCE", _spec("source")),
        Column("MACHINES", _status("machines", 0)),
        Column("REFRESHED", lambda item: moment(item.get("status", {}).get("refreshed_at", 0.0))),
        Column("FAILURES", _status("failures", 0)),
        Column("MESSAGE", _status("error")),
        AGE,
        LABELS,
    ),
    "secret": (
        NAME,
        Column("KEYS", lambda item: ",".join(sorted(item["spec"].get("sealed", ()))) or "-"),
        AGE,
        LABELS,
    ),
    "spare": (
        NAME,
        Column("PHASE", lambda item: item.get("status", {}).get("phase", "Preparing")),
        Column("CLUSTER", _spec("cluster")),
        Column("COUNT", _spec("count", 1)),
        Column("MESSAGE", lambda item: item.get("status", {}).get("message") or "-"),
        AGE,
        LABELS,
    ),
    "role": (
        NAME,
        Column("RULES", lambda item: "; ".join(map(rule_text, item["spec"].get("rules", ())))),
        AGE,
        LABELS,
    ),
    "role-binding": (
        NAME,
        Column("ROLE", _spec("role")),
        Column("NAMESPACES", lambda item: ",".join(item["spec"].get("namespaces", ("*",)))),
        Column("ISSUER", _spec("issuer", "default")),
        Column("USERS", lambda item: ",".join(item["spec"].get("users", ())) or "-"),
        Column("GROUPS", lambda item: ",".join(item["spec"].get("groups", ())) or "-"),
        AGE,
        LABELS,
    ),
    "issuer": (
        NAME,
        Column("URL", _spec("url")),
        Column("SUBJECTS", _spec("subjects", "people")),
        Column("AUDIENCE", lambda item: ",".join(item["spec"]["audience"])),
        AGE,
        LABELS,
    ),
    **dict.fromkeys(("identity-key", "acme-account"), (NAME, AGE)),
    "webhook": RECEIVER,
    "event-bus": RECEIVER,
    "log-sink": (
        NAME,
        Column("STATE", log_sinks.state),
        Column("URL", _spec("url")),
        Column("SOURCES", log_sinks.takes),
        Column("NAMESPACES", receivers.patterns("namespaces")),
        Column("WORKLOADS", receivers.patterns("workloads"), wide=True),
        AGE,
        LABELS,
    ),
    "limit-defaults": (
        NAME,
        Column("REQUESTS", _amounts("resources")),
        Column("LIMITS", _amounts("resources", "limits")),
        Column("MAXIMUM", _amounts("most")),
        AGE,
        LABELS,
    ),
    "event": (
        Column("LAST", _last),
        Column("TYPE", _spec("type", "normal")),
        Column("REASON", _spec("reason")),
        Column("ABOUT", _spec("about")),
        Column("COUNT", _spec("count", 1)),
        Column("MESSAGE", _spec("message")),
        Column("SOURCE", _spec("source"), wide=True),
        Column("NODE", _spec("node"), wide=True),
        Column("NAME", _name, wide=True),
    ),
    "audit": (
        Column("AT", lambda item: moment(item["spec"].get("at", 0.0))),
        Column("IDENTITY", _spec("identity")),
        Column("VERB", _spec("verb")),
        Column("ABOUT", _spec("about")),
        Column("CHANGED", _words("changed")),
        Column("TOKEN", _spec("token"), wide=True),
        Column("FROM", _spec("address"), wide=True),
    ),
    "token": (
        NAME,
        Column("ROLE", lambda item: item["spec"].get("custom") or item["spec"]["role"]),
        Column("IDENTITY", _spec("identity")),
        Column("NAMESPACES", _words("namespaces", "*")),
        Column("EXPIRES", _expires),
        Column("USES", _uses),
        Column("JOINS", _joins),
        AGE,
    ),
    "session": (
        NAME,
        Column("VERB", _spec("verb")),
        Column("INSTANCE", _spec("instance")),
        Column("NODE", _spec("node")),
    ),
    "server": (
        NAME,
        Column("ADDRESS", _spec("address")),
        Column("VERSION", _spec("version")),
        Column("ROLES", lambda item: ",".join(item["spec"].get("roles", ()))),
        Column("FEATURES", lambda item: ",".join(item["spec"].get("features", ())), wide=True),
        AGE,
    ),
    "lease": (
        NAME,
        Column("HOLDER", _spec("holder")),
        Column("SECONDS", _spec("seconds")),
        Column("ADDRESS", _spec("address")),
    ),
    "hearing": (NAME, Column("NODES", lambda item: len(item["spec"].get("nodes", ())))),
    "tally": (NAME, Column("GROUPS", lambda item: len(item["spec"].get("groups", ())))),
    "authority": (NAME, Column("TRUSTED", lambda item: len(item["spec"].get("certificates", ()))), AGE),
    "cluster": (NAME, Column("ID", _spec("id")), Column("EPOCH", _spec("epoch", 1)), AGE),
}


def columns(kind: str, *, wide: bool = False, namespace: bool = False) -> tuple[Column, ...]:
    found = tuple(column for column in COLUMNS[kind] if wide or not column.wide)
    return (Column("NAMESPACE", lambda item: item["meta"].get("namespace") or "-"), *found) if namespace else found


def row(shown: tuple[Column, ...], item: Object) -> tuple[str, ...]:
    return tuple(one_line(column.cell(item)) for column in shown)


def one_line(value: Any) -> str:
    return printable(" ".join(str(value).split()))


def printable(text: str) -> str:
    """Replace characters that would control the terminal: messages may quote the output of programs."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)
