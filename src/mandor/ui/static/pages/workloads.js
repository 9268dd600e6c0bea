// Workloads: the list, and one workload with its rollout and actions.

import * as api from "../api.js";
import * as live from "../live.js";
import { fill, h, List, progress } from "../dom.js";
import { attempt, mayChange, place } from "../main.js";
import { age, t } from "../words.js";
import { Explained } from "./explain.js";
import { about, events, facts, link, phase } from "./parts.js";

export class WorkloadsPage {
  enter(main) {
    this.list = new List([
      { name: t("Name"), width: "2fr", of: (each) => link(place(each), each.meta.name) },
      { name: t("Namespace"), of: (each) => each.meta.namespace },
      { name: t("Type"), width: "6rem", of: (each) => each.spec.type ?? "service" },
      { name: t("Phase"), width: "7rem", of: (each) => phase(each.status?.phase) },
      { name: t("Ready"), width: "12rem", of: (each) => [progress(each.status?.wanted ? (each.status.ready ?? 0) / each.status.wanted : 0, t("Ready")), ` ${each.status?.ready ?? 0}/${each.status?.wanted ?? 0}`] },
      { name: t("Message"), width: "3fr", of: (each) => each.status?.rollout?.message || each.status?.message || "" },
      { name: t("Age"), width: "4rem", of: (each) => age(each.meta.created_at) },
    ], t("Workloads"));
    fill(main, h("h1", {}, t("Workloads")), this.list.element);
    this.update(new Set(["workload"]));
  }

  update(kinds) {
    if (kinds.has("workload")) this.list.show(live.all("workload"));
  }
}

export class WorkloadPage {
  constructor(namespace, name) { this.namespace = namespace; this.name = name; }

  get address() { return `/v1/workloads/${encodeURIComponent(this.name)}`; }
  get where() { return api.query({ namespace: this.namespace }); }

  enter(main) {
    this.top = h("div");
    this.buttons = h("div", { class: "row" });
    this.history = h("div");
    this.events = h("div");
    this.explained = new Explained(`/v1/explain/workloads/${encodeURIComponent(this.name)}?${this.where}`);
    this.list = new List([
      { name: t("Name"), width: "2fr", of: (each) => link(place(each), each.meta.name) },
      { name: t("Phase"), width: "8rem", of: (each) => phase(each.status?.phase) },
      { name: t("Node"), of: (each) => each.spec.node || "-" },
      { name: t("Restarts"), width: "6rem", of: (each) => `${each.status?.restarts ?? 0}` },
      { name: t("Message"), width: "3fr", of: (each) => each.status?.message ?? "" },
    ], t("Instances"));
    fill(main, this.top, this.buttons, h("h2", {}, t("Instances")), this.list.element,
      h("div", { class: "two" },
        h("section", {}, h("h2", {}, t("Explanation")), this.explained.element),
        h("section", {}, h("h2", {}, t("History")), this.history, h("h2", {}, t("Events")), this.events)));
    this.showButtons();
    this.update(new Set(["workload", "instance", "event"]));
  }

  get value() { return live.find("workload", this.namespace, this.name); }

  showButtons() {
    const workload = this.value;
    if (!workload || !mayChange()) return;
    const groups = Object.keys(workload.spec.groups ?? {});
    const group = h("select", { "aria-label": t("Name") }, groups.map((each) => h("option", {}, each)));
    const count = h("input", { type: "number", min: "0", max: "10000", id: "count", value: `${workload.spec.groups?.[groups[0]]?.replicas ?? workload.status?.wanted ?? 1}` });
    const scale = () => attempt(() => api.patch(`${this.address}?${this.where}`, { spec: { groups: { [group.value]: { replicas: Number(count.value) } } } }), `${this.name}: ${count.value}`);
    const restart = () => attempt(() => api.patch(`${this.address}?${this.where}`, { spec: { restarted: (this.value.spec.restarted ?? 0) + 1 } }), t("Restart requested."));
    const order = (word) => () => attempt(async () => { await api.post(`${this.address}/rollout?${this.where}`, { order: word }); await this.showHistory(); });
    fill(this.buttons,
      workload.spec.type === "daemon" ? null : [h("label", { for: "count" }, t("Replicas")), groups.length > 1 ? group : null, count, h("button", { class: "first", onclick: scale }, t("Scale"))],
      h("button", { onclick: restart }, t("Restart")),
      ["undo", "pause", "resume", "promote"].map((word) => h("button", { onclick: order(word) }, t(word[0].toUpperCase() + word.slice(1)))));
  }

  update(kinds) {
    if (kinds.has("workload")) {
      this.showTop();
      if (!this.buttons.childNodes.length) this.showButtons();
      this.showHistory();
      this.explained.refresh();
    }
    if (kinds.has("instance")) this.list.show(live.all("instance").filter((each) => each.meta.namespace === this.namespace && each.spec.workload === this.name));
    if (kinds.has("event")) {
      const mine = about("workload", this.namespace, this.name);
      fill(this.events, events((each) => mine(each) || each.spec.about.startsWith(`instance ${this.namespace}/${this.name}-`), 30));
    }
  }

  showTop() {
    const workload = this.value;
    if (!workload) { fill(this.top, h("h1", {}, this.name), h("p", {}, t("No items."))); return; }
    const { status = {} } = workload;
    const rollout = status.rollout;
    fill(this.top, h("h1", {}, `${this.namespace}/${this.name} `, phase(status.phase)),
      h("div", { class: "sheet" }, facts([
        [t("Ready"), `${status.ready ?? 0} / ${status.wanted ?? 0}`],
        [t("Rollout"), rollout ? [phase(rollout.phase ?? "Progressing"), ` ${rollout.message ?? ""}`] : undefined],
        [t("Message"), status.message], [t("Release"), status.release],
      ])));
  }

  async showHistory() {
    const found = await api.get(`${this.address}/rollout?${this.where}`).catch(() => null);
    if (found) fill(this.history, h("ul", { class: "events" }, (found.history ?? []).slice(-10).reverse().map((each) =>
      h("li", {}, `${each.name} `, each.current ? h("b", {}, "● ") : null, h("span", { class: "soft" }, `${each.cause ?? ""} ${age(each.created_at)} · ${each.instances ?? 0}`)))));
  }
}
