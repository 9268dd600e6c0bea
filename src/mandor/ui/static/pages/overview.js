// Overview: the cluster at a glance.

import * as live from "../live.js";
import { bar, fill, h } from "../dom.js";
import { ClusterMap } from "../map.js";
import { bytes, t } from "../words.js";
import { events, link } from "./parts.js";

const sum = (items, of) => items.reduce((total, each) => total + (of(each) ?? 0), 0);

export class OverviewPage {
  enter(main) {
    this.map = new ClusterMap();
    this.cards = h("div", { class: "cards" });
    this.events = h("div");
    const by = h("select", { id: "by", onchange: () => { this.map.by = by.value; this.map.draw(); } },
      ["workload", "phase", "priority", "pressure"].map((each) => h("option", { value: each }, t(each))));
    fill(main, h("h1", {}, t("Overview")), this.cards,
      h("section", { class: "sheet", "aria-label": t("Cluster map") },
        h("div", { class: "row" }, h("label", { for: "by" }, t("Colour by")), by), h("p"), this.map.element),
      h("section", { class: "sheet" }, h("h2", {}, t("Recent events")), this.events));
    this.update(new Set(["node", "instance", "event"]));
  }

  leave() { this.map.leave(); }

  update(kinds, touched = null) {
    this.map.update(kinds, touched);
    if (kinds.has("event")) fill(this.events, events(() => true, 12));
    if (!kinds.has("node") && !kinds.has("instance") && !kinds.has("workload")) return;
    const nodes = live.all("node");
    const ready = nodes.filter((each) => each.status?.phase === "Ready");
    let [waiting, serving] = [0, 0];
    for (const { status } of live.objects.instance.values()) {
      if (status?.ready) serving += 1;
      if (status?.phase === "Pending") waiting += 1;
    }
    const has = { cpu: sum(ready, (each) => each.status.capacity?.cpu_milli), memory: sum(ready, (each) => each.status.capacity?.memory_bytes) };
    const used = { cpu: sum(ready, (each) => each.status.usage?.cpu_milli), memory: sum(ready, (each) => each.status.usage?.memory_bytes) };
    const card = (name, value, more) => h("div", { class: "card" }, h("span", { class: "soft" }, name), h("b", {}, value), more ?? null);
    fill(this.cards,
      card(t("Ready nodes"), `${ready.length} / ${nodes.length}`),
      card(t("Ready instances"), `${serving} / ${sum(live.all("workload"), (each) => each.status?.wanted)}`),
      card(t("Waiting"), `${waiting}`, waiting ? link("#/instances?phase=Pending", t("Explanation")) : null),
      card(t("Processors"), `${(used.cpu / 1000).toFixed(1)} / ${has.cpu / 1000}`, bar(has.cpu ? used.cpu / has.cpu : 0, t("Processors"))),
      card(t("Memory"), `${bytes(used.memory)} / ${bytes(has.memory)}`, bar(has.memory ? used.memory / has.memory : 0, t("Memory"))));
  }
}
