// Plan: a manifest, or a file of another tool, rehearsed before it is applied.

import * as api from "../api.js";
import { fill, h } from "../dom.js";
import { attempt, mayChange } from "../main.js";
import { t } from "../words.js";

const TYPE = "application/yaml";

export class PlanPage {
  enter(main) {
    this.text = h("textarea", { id: "file", spellcheck: "false", placeholder: "name: web\ncount: 3\nimage: nginx" });
    this.result = h("div", { "aria-live": "polite" });
    const drop = async (event) => { event.preventDefault(); const [file] = event.dataTransfer.files; if (file) this.text.value = await file.text(); };
    this.text.addEventListener("dragover", (event) => event.preventDefault());
    this.text.addEventListener("drop", drop);
    fill(main, h("h1", {}, t("Plan")),
      h("label", { for: "file" }, t("A manifest, or a Compose, Kubernetes or Nomad file")),
      h("p", { class: "soft" }, t("Paste or drop a file; nothing changes until you apply it.")), this.text,
      h("p", { class: "row" }, h("button", { class: "first", onclick: () => this.plan() }, t("Rehearse")),
        mayChange() ? h("button", { onclick: () => this.apply() }, t("Apply")) : null), this.result);
  }

  async plan() {
    fill(this.result, h("p", { class: "soft" }, "…"));
    try {
      const found = await api.post("/v1/plan", this.text.value, TYPE);
      fill(this.result, h("p", { class: found.fits ? "good" : "bad" }, t(found.fits ? "Everything would have a node." : "Not everything would have a node.")),
        part(t("Would be placed"), found.placements, (each) => `${each.namespace}/${each.instance} → ${each.node}`),
        part(t("Would wait"), found.pending, (each) => `${each.namespace}/${each.instance}: ${each.message}`),
        part(t("Would have to go"), found.victims, (each) => `${each.namespace}/${each.instance} (${each.makes_room_for})`),
        imported(found.imported));
    } catch (error) {
      fill(this.result, h("p", { class: "bad", role: "alert" }, error.hint ? `${error.message}; ${error.hint}` : error.message));
    }
  }

  async apply() {
    await attempt(async () => {
      const found = await api.post("/v1/apply", this.text.value, TYPE);
      fill(this.result, h("ul", {}, (found.results ?? []).map((each) => h("li", {}, `${each.kind ?? ""} ${each.namespace ?? ""}/${each.name ?? ""} ${each.action ?? each.outcome ?? ""}`))), imported(found.imported));
    }, t("Apply"));
  }
}

function part(title, items, of) {
  if (!items?.length) return null;
  return h("section", { class: "sheet" }, h("h2", {}, `${title}: ${items.length}`), h("ul", {}, items.slice(0, 200).map((each) => h("li", {}, of(each)))));
}

function imported(report) {
  const left = report?.unmapped ?? report?.left ?? report?.notes ?? [];
  return part(t("Not taken over"), left, (each) => (typeof each === "string" ? each : [each.file, each.line, each.path ?? each.key, each.why ?? each.message].filter(Boolean).join(": ")));
}
