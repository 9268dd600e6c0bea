// Instances: the list, and one instance with logs, probes, events and the explanation of its placement.

import * as api from "../api.js";
import * as live from "../live.js";
import { chart } from "../chart.js";
import { fill, h, List } from "../dom.js";
import { mayChange, place } from "../main.js";
import { age, bytes, quantity, t } from "../words.js";
import { Explained } from "./explain.js";
import { about, events, facts, link, phase } from "./parts.js";
import { Shell } from "./shell.js";

const LINES_MOST = 2000;
const USAGE_SECONDS = 10;
const USAGES_MOST = 60;

const isMain = (task) => (task.role ?? "main") === "main";
const tasksOf = (workload, group = "main") => Object.entries(workload.spec.groups?.[group]?.tasks ?? {})
  .sort(([, a], [, b]) => isMain(b) - isMain(a)).map(([name]) => name);

export class InstancesPage {
  enter(main) {
    const phases = ["", "Pending", "Starting", "Running", "Stopping", "Succeeded", "Failed", "Lost"];
    const asked = new URLSearchParams(location.hash.split("?")[1] ?? "").get("phase") ?? "";
    this.phase = h("select", { id: "phase", onchange: () => this.update(new Set(["instance"])) },
      phases.map((each) => h("option", { value: each, selected: each === asked }, each || t("all"))));
    this.list = new List([
      { name: t("Name"), width: "2fr", of: (each) => link(place(each), each.meta.name) },
      { name: t("Namespace"), of: (each) => each.meta.namespace },
      { name: t("Phase"), width: "8rem", of: (each) => phase(each.status?.phase) },
      { name: t("Ready"), width: "4rem", of: (each) => (each.status?.ready ? "✓" : "-") },
      { name: t("Node"), of: (each) => each.spec.node || "-" },
      { name: t("Restarts"), width: "6rem", of: (each) => `${each.status?.restarts ?? 0}` },
      { name: t("Message"), width: "3fr", of: (each) => each.status?.message ?? "" },
      { name: t("Age"), width: "4rem", of: (each) => age(each.meta.created_at) },
    ], t("Instances"));
    fill(main, h("h1", {}, t("Instances")), h("p", { class: "row" }, h("label", { for: "phase" }, t("Phase")), this.phase), this.list.element);
    this.update(new Set(["instance"]));
  }

  update(kinds) {
    if (!kinds.has("instance")) return;
    const wanted = this.phase.value;
    this.list.show(wanted ? live.all("instance").filter((each) => each.status?.phase === wanted) : live.all("instance"));
  }
}

export class InstancePage {
  constructor(namespace, name) {
    this.namespace = namespace;
    this.name = name;
    this.ending = new AbortController();
    this.usage = [];
  }

  get where() { return api.query({ namespace: this.namespace }); }

  enter(main) {
    this.top = h("div");
    this.events = h("div");
    this.logs = h("pre", { class: "logs", tabindex: "0", "aria-label": t("Logs") });
    this.chart = h("div", { class: "sheet" });
    this.explained = new Explained(`/v1/explain/instances/${encodeURIComponent(this.name)}?${this.where}`);
    this.inside = h("section");
    fill(main, this.top, h("h2", {}, t("Logs")), this.logs, this.inside,
      h("div", { class: "two" },
        h("section", {}, h("h2", {}, t("Explanation")), this.explained.element),
        h("section", {}, h("h2", {}, t("Used")), this.chart, h("h2", {}, t("Events")), this.events)));
    this.update(new Set(["instance", "event"]));
    this.timer = setInterval(() => this.measure(), USAGE_SECONDS * 1000);
  }

  leave() {
    this.ending.abort();
    clearInterval(this.timer);
    this.shell?.leave();
  }

  async follow() {
    let waiting = [];
    const show = () => {
      const below = this.logs.scrollHeight - this.logs.scrollTop - this.logs.clientHeight < 40;
      this.logs.append(...waiting.map(({ stream, text }) => h("span", { class: stream === "stderr" ? "err" : "" }, `${text}\n`)));
      waiting = [];
      while (this.logs.childNodes.length > LINES_MOST) this.logs.firstChild.remove();
      if (below) this.logs.scrollTop = this.logs.scrollHeight;
    };
    const take = (text) => {
      if (waiting.push(JSON.parse(text)) === 1) requestAnimationFrame(show);
      if (waiting.length > LINES_MOST) waiting = waiting.slice(-LINES_MOST); // nobody looks: no frame is drawn
    };
    const path = `/v1/instances/${encodeURIComponent(this.name)}/logs?${api.query({ namespace: this.namespace, follow: "true", tail: "200" })}`;
    try {
      await api.lines(path, take, { signal: this.ending.signal, accept: "application/x-ndjson" });
    } catch (error) {
      if (!this.ending.signal.aborted) this.logs.append(h("span", { class: "err" }, `${error.message}\n`));
    }
  }

  async measure() {
    const node = live.find("instance", this.namespace, this.name)?.spec.node;
    if (!node) return;
    const found = await api.get(`/v1/nodes/${encodeURIComponent(node)}/usage`).catch(() => null);
    const mine = found?.instances?.[`${this.namespace}/${this.name}`];
    if (!mine) return;
    this.usage = [...this.usage.slice(1 - USAGES_MOST), mine];
    const asked = this.asked();
    const one = (label, of, limit, text) => {
      const values = this.usage.map((each) => of(each) ?? 0);
      return h("figure", {}, h("figcaption", {}, label, h("b", {}, ` ${text(values.at(-1))}`), limit ? h("span", { class: "soft" }, ` / ${text(limit)} ${t("requested")}`) : null),
        chart(label, values, { room: USAGES_MOST, limit, text }));
    };
    fill(this.chart, one(t("Processors"), (each) => each.cpu_milli, asked.cpu, (value) => (value / 1000).toFixed(2)),
      one(t("Memory"), (each) => each.memory_bytes, asked.memory, bytes));
  }

  // What its tasks asked for together.
  asked() {
    const instance = live.find("instance", this.namespace, this.name);
    const tasks = Object.values(live.find("workload", this.namespace, instance?.spec.workload)?.spec.groups?.[instance?.spec.group ?? "main"]?.tasks ?? {});
    const sum = (of) => tasks.map((each) => of(each.resources ?? {})).reduce((one, other) => one + other, 0);
    return { cpu: 1000 * sum(({ cpu }) => quantity(cpu)), memory: sum(({ memory }) => quantity(memory)) };
  }

  update(kinds) {
    if (kinds.has("instance")) this.showTop();
    if (kinds.has("event")) fill(this.events, events(about("instance", this.namespace, this.name)));
  }

  showTop() {
    const found = live.find("instance", this.namespace, this.name);
    if (!found) { fill(this.top, h("h1", {}, this.name), h("p", {}, t("No items."))); return; }
    const { status = {}, spec } = found;
    const seen = JSON.stringify([status.phase, spec.node, status.ready]);
    if (seen !== this.seen) this.explained.refresh();
    this.seen = seen;
    if (spec.node && status.phase !== "Pending" && !this.following) {
      this.following = true;
      this.follow();
      this.measure();
    }
    const workload = live.find("workload", this.namespace, spec.workload);
    if (workload && mayChange() && status.phase === "Running" && !this.shell) {
      this.shell = new Shell(this.namespace, this.name, tasksOf(workload, spec.group));
      fill(this.inside, h("h2", {}, t("Shell")), this.shell.element);
    }
    const node = live.find("node", "", spec.node);
    fill(this.top, h("h1", {}, `${this.namespace}/${this.name} `, phase(status.phase)),
      h("div", { class: "sheet" }, facts([
        [t("workload"), workload ? link(place(workload), spec.workload) : spec.workload],
        [t("Node"), node ? link(place(node), spec.node) : spec.node], [t("Ready"), status.ready ? "✓" : "-"],
        [t("Message"), [status.reason, status.message].filter(Boolean).join(": ")], [t("Restarts"), `${status.restarts ?? 0}`],
        [t("Address"), [status.address || status.host, ...(status.ports ?? []).map((each) => `${each.name ?? ""}:${each.port ?? each.host_port ?? ""}`)].filter(Boolean).join(" ")],
        [t("Release"), spec.release], [t("Age"), age(found.meta.created_at)],
      ])));
  }
}
