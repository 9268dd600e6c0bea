// Nodes: the list, and one node.

import * as api from "../api.js";
import * as live from "../live.js";
import { bar, fill, h, List } from "../dom.js";
import { attempt, mayChange, place, seesAll } from "../main.js";
import { age, bytes, t } from "../words.js";
import { about, events, facts, link, phase } from "./parts.js";

const share = (node, what) => {
  const has = node.status?.capacity?.[what];
  return has ? (node.status.usage?.[what] ?? 0) / has : 0;
};
const engines = (node) => Object.entries(node.status?.engines ?? {}).map(([name, each]) => (each.up === false ? `${name} ✗` : name)).join(", ");
const instances = (name) => [...(live.placed.get(name)?.values() ?? [])];
const count = (node) => `${live.placed.get(node.meta.name)?.size ?? 0}`;

export class NodesPage {
  enter(main) {
    this.list = new List([
      { name: t("Name"), width: "2fr", of: (node) => link(place(node), node.meta.name) },
      { name: t("Phase"), of: (node) => [phase(node.status?.phase), node.spec?.cordoned || node.spec?.drain ? " ⛔" : ""] },
      { name: t("Pool"), of: (node) => node.spec?.pool ?? "default" },
      { name: t("Instances"), width: "6rem", of: count },
      { name: t("Processors"), width: "8rem", of: (node) => bar(share(node, "cpu_milli"), t("Processors")) },
      { name: t("Memory"), width: "8rem", of: (node) => bar(share(node, "memory_bytes"), t("Memory")) },
      { name: t("Engines"), width: "2fr", of: engines },
    ], t("Nodes"), count);
    fill(main, h("h1", {}, t("Nodes")), this.list.element);
    this.update(new Set(["node"]));
  }

  update(kinds) {
    if (!kinds.has("node") && !kinds.has("instance")) return;
    this.list.show(live.all("node"));
  }
}

export class NodePage {
  constructor(name) { this.name = name; }

  enter(main) {
    this.top = h("div");
    this.list = new List([
      { name: t("Name"), width: "2fr", of: (each) => link(place(each), each.meta.name) },
      { name: t("Namespace"), of: (each) => each.meta.namespace },
      { name: t("Phase"), of: (each) => phase(each.status?.phase) },
      { name: t("Message"), width: "3fr", of: (each) => each.status?.message ?? "" },
    ], t("Instances"));
    this.events = h("div");
    fill(main, this.top, h("h2", {}, t("Instances")), this.list.element, h("h2", {}, t("Events")), this.events);
    this.update(new Set(["node", "instance", "event"]));
  }

  update(kinds) {
    if (kinds.has("node")) this.showTop();
    if (kinds.has("instance")) this.list.show(instances(this.name));
    if (kinds.has("event")) fill(this.events, events((each) => each.spec.node === this.name || about("node", "", this.name)(each)));
  }

  showTop() {
    const node = live.find("node", "", this.name);
    if (!node) { fill(this.top, h("h1", {}, this.name), h("p", {}, t("No items."))); return; }
    const { status = {}, spec = {} } = node;
    const closed = spec.cordoned || spec.drain;
    const change = (words) => () => attempt(() => api.patch(`/v1/nodes/${encodeURIComponent(this.name)}`, { spec: words }));
    const buttons = mayChange() && seesAll() ? h("div", { class: "row" },
      closed ? h("button", { onclick: change({ cordoned: false, drain: null }) }, t("Uncordon")) : h("button", { onclick: change({ cordoned: true }) }, t("Cordon")),
      spec.drain ? null : h("button", { onclick: change({ drain: {} }) }, t("Drain"))) : null;
    fill(this.top, h("h1", {}, this.name, " ", phase(status.phase)), buttons, h("p"),
      h("div", { class: "sheet" }, facts([
        [t("Pool"), spec.pool ?? "default"], [t("Address"), status.address], [t("Engines"), engines(node)],
        [t("Processors"), `${((status.usage?.cpu_milli ?? 0) / 1000).toFixed(1)} / ${(status.capacity?.cpu_milli ?? 0) / 1000}`],
        [t("Memory"), `${bytes(status.usage?.memory_bytes ?? 0)} / ${bytes(status.capacity?.memory_bytes ?? 0)}`],
        [t("pressure"), (status.pressure ?? []).join(", ")], [t("Message"), status.reason || status.drain?.message],
        [t("Labels"), Object.entries(node.meta.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(", ")],
        [t("Age"), age(node.meta.created_at)],
      ])));
  }
}
