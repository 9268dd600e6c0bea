// Bare metal: requests for virtual machines, and spare machines for upgrades.

import * as api from "../api.js";
import * as live from "../live.js";
import { fill, h, List, progress } from "../dom.js";
import { attempt, mayChange, place } from "../main.js";
import { age, bytes, t } from "../words.js";
import { about, events, facts, link, phase } from "./parts.js";

const STATES = ["Queued", "Processing", "Placed", "Confirmed", "Released", "Failed", "Cancelled"];
const OPEN = new Set(["Queued", "Processing", "Placed", "Confirmed"]);

const stateOf = (task) => task.status?.state ?? "Queued";
const phaseOf = (spare) => spare.status?.phase ?? "Preparing";
const vmsOf = (spare) => spare.status?.vms ?? [];
const size = (spec) => [[t("Processors"), `${spec.cpu}`], [t("Memory"), bytes(spec.memory_mib * 1024 * 1024)]];
const says = (task) => task.status?.error || task.status?.history?.at(-1)?.why || "";
const newest = (kind) => [...live.all(kind)].sort((a, b) => b.meta.created_at - a.meta.created_at);
const to = (kind, namespace, name) => (name ? link(place({ kind, meta: { namespace, name } }), name) : "-");
const machine = (name) => to("node", "", name);

const story = (history, of) => h("ul", { class: "events" }, [...(history ?? [])].reverse().map((step) => h("li", {},
  h("span", { class: "soft" }, `${age(step.at)} · `), phase(of(step)), step.why ? `: ${step.why}` : "")));

// Asks for confirmation before an action that cannot be undone.
const sure = (work) => () => { if (confirm(t("This cannot be undone. Continue?"))) attempt(work); };

export class BareMetalPage {
  enter(main) {
    const asked = new URLSearchParams(location.hash.split("?")[1] ?? "").get("state") ?? "";
    this.state = h("select", { id: "state", onchange: () => this.choose() },
      ["", ...STATES].map((each) => h("option", { value: each, selected: each === asked }, each || t("all"))));
    this.spares = new List([
      { name: t("Name"), width: "19rem", of: (each) => link(place(each), each.meta.name) },
      { name: t("Namespace"), of: (each) => each.meta.namespace },
      { name: t("Phase"), width: "7rem", of: (each) => phase(phaseOf(each)) },
      { name: t("Cluster"), of: (each) => each.spec.cluster },
      { name: t("Ready"), width: "4rem", of: (each) => counted(each).join("/") },
      { name: t("Message"), width: "2fr", of: (each) => each.status?.message ?? "" },
      { name: t("Age"), width: "4rem", of: (each) => age(each.meta.created_at) },
    ], t("Spares"));
    this.tasks = new List([
      { name: t("Name"), width: "19rem", of: (each) => link(place(each), each.meta.name) },
      { name: t("Namespace"), of: (each) => each.meta.namespace },
      { name: t("State"), width: "7rem", of: (each) => phase(stateOf(each)) },
      { name: t("Pool"), of: (each) => each.spec.pool ?? "default" },
      { name: t("Machine"), of: (each) => machine(each.status?.node) },
      { name: t("Address"), of: (each) => each.status?.address ?? "" },
      { name: t("Message"), width: "2fr", of: says },
      { name: t("Age"), width: "4rem", of: (each) => age(each.meta.created_at) },
    ], t("Tasks"));
    this.noSpares = h("p", { class: "soft" }, t("No items."));
    this.noTasks = h("p", { class: "soft" }, t("No items."));
    fill(main, h("h1", {}, t("Bare metal")), h("h2", {}, t("Spares")), this.noSpares, this.spares.element,
      h("h2", {}, t("Tasks")), h("p", { class: "row" }, h("label", { for: "state" }, t("State")), this.state), this.noTasks, this.tasks.element);
    this.update(new Set(["task", "spare"]));
  }

  // The address names the choice, so that it can be passed on.
  choose() {
    history.replaceState(null, "", this.state.value ? `#/baremetal?state=${this.state.value}` : "#/baremetal");
    this.update(new Set(["task"]));
  }

  update(kinds) {
    if (kinds.has("spare")) show(this.spares, newest("spare"), this.noSpares);
    if (kinds.has("task")) show(this.tasks, newest("task").filter((each) => !this.state.value || stateOf(each) === this.state.value), this.noTasks);
  }
}

function show(list, items, none) {
  none.hidden = items.length > 0;
  list.element.hidden = !items.length;
  list.show(items);
}

const counted = (spare) => [vmsOf(spare).filter((each) => each.state === "Ready").length, spare.spec.count ?? 1];

function ready(spare) {
  const [there, wanted] = counted(spare);
  return [progress(there / wanted, t("Ready")), ` ${there}/${wanted}`];
}

// Detail page of one object: actions, facts, history and events, drawn again when it changes.
class OnePage {
  constructor(kind, namespace, name) { Object.assign(this, { kind, namespace, name }); }

  get where() { return api.query({ namespace: this.namespace }); }

  enter(main) {
    this.top = h("div");
    this.events = h("div");
    fill(main, this.top, h("h2", {}, t("Events")), this.events);
    this.update(new Set([this.kind, "event"]));
  }

  update(kinds) {
    if (kinds.has("event")) fill(this.events, events(about(this.kind, this.namespace, this.name)));
    if (!kinds.has(this.kind)) return;
    const found = live.find(this.kind, this.namespace, this.name);
    if (!found) fill(this.top, h("h1", {}, this.name), h("p", {}, t("No items.")));
    else if (found !== this.seen) fill(this.top, this.shown(found));
    this.seen = found;
  }
}

export class TaskPage extends OnePage {
  constructor(namespace, name) { super("task", namespace, name); }

  shown(task) {
    const { spec, status = {} } = task;
    const state = stateOf(task);
    const owner = (spec.owner ?? "").replace(/^spare\//, "");
    return [h("h1", {}, `${this.name} `, phase(state)),
      mayChange() && !owner && OPEN.has(state) ? h("p", {}, h("button", { onclick: this.cancel }, t(state === "Confirmed" ? "Release machine" : "Cancel"))) : null,
      h("div", { class: "sheet" }, facts([
        [t("Machine"), machine(status.node)], [t("Address"), status.address], ...size(spec),
        [t("Dedicated"), spec.dedicated ? "✓" : undefined], [t("Pool"), spec.pool ?? "default"], [t("Rules"), (spec.where ?? []).join(", ")],
        [t("Virtual machine"), spec.vm], [t("Spare"), owner ? to("spare", this.namespace, owner) : undefined],
        [t("Message"), [status.reason, status.error].filter(Boolean).join(": ")], [t("Failed attempts"), status.attempts ? `${status.attempts}` : undefined],
        [t("Namespace"), this.namespace], [t("Age"), age(task.meta.created_at)],
      ])),
      h("h2", {}, t("History")), story(status.history, (step) => step.state)];
  }

  get cancel() { return sure(() => api.post(`/schedule/${encodeURIComponent(this.name)}/cancel?${this.where}`, "")); }
}

export class SparePage extends OnePage {
  constructor(namespace, name) { super("spare", namespace, name); }

  shown(spare) {
    const { spec, status = {} } = spare;
    const releasable = ["Preparing", "Ready"].includes(phaseOf(spare)) && !spec.released;
    const machines = new List([
      { name: t("Name"), width: "11rem", of: (each) => each.name },
      { name: t("State"), width: "6rem", of: (each) => phase(each.state ?? "Placing") },
      { name: t("Machine"), of: (each) => machine(each.node) },
      { name: t("Address"), of: (each) => each.address ?? "" },
      { name: t("Task"), width: "19rem", of: (each) => to("task", this.namespace, each.task) },
      { name: t("Message"), width: "2fr", of: (each) => each.message ?? "" },
    ], t("Machines"));
    machines.show(vmsOf(spare));
    return [h("h1", {}, `${this.name} `, phase(phaseOf(spare))),
      mayChange() && releasable ? h("p", {}, h("button", { onclick: this.release }, t("Release machines"))) : null,
      h("div", { class: "sheet" }, facts([
        [t("Ready"), ready(spare)], [t("Cluster"), spec.cluster], [t("Pool"), spec.pool ?? "default"], ...size(spec),
        [t("Message"), status.message || spec.released], [t("Namespace"), this.namespace], [t("Age"), age(spare.meta.created_at)],
      ])),
      h("h2", {}, t("Machines")), machines.element,
      h("h2", {}, t("History")), story(status.history, (step) => step.phase)];
  }

  get release() { return sure(() => api.post(`/spare/${encodeURIComponent(this.name)}/release?${this.where}`, {})); }
}
