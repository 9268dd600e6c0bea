// Plan: preview of a manifest, or of a file of another tool, before it is applied.

import * as api from "../api.js";
import { fill, h } from "../dom.js";
import { mayChange } from "../main.js";
import { t } from "../words.js";

const TYPE = "application/yaml";

export class PlanPage {
  enter(main) {
    this.text = h("textarea", { id: "file", spellcheck: "false", placeholder: "name: web\ncount: 3\nimage: nginx" });
    this.result = h("div", { "aria-live": "polite" });
    this.simulating = h("button", { onclick: () => this.simulate() }, t("Simulate"));
    this.minutes = h("input", { id: "minutes", type: "number", min: "1", max: "1440", value: "10" });
    const drop = async (event) => { event.preventDefault(); const [file] = event.dataTransfer.files; if (file) this.text.value = await file.text(); };
    this.text.addEventListener("dragover", (event) => event.preventDefault());
    this.text.addEventListener("drop", drop);
    fill(main, h("h1", {}, t("Plan")),
      h("label", { for: "file" }, t("A manifest, or a Compose, Kubernetes or Nomad file")),
      h("p", { class: "soft" }, t("Paste or drop a file; nothing changes until you apply it.")), this.text,
      h("p", { class: "row" }, h("button", { class: "first", onclick: () => this.plan() }, t("Preview")), this.simulating,
        mayChange() ? h("button", { onclick: () => this.apply() }, t("Apply")) : null,
        h("label", { for: "minutes" }, t("Minutes")), this.minutes), this.result);
  }

  leave() { this.running?.abort(); }

  // The same button begins it and calls it off.
  async simulate() {
    if (this.running) { this.running.abort(); return; }
    const running = new AbortController();
    this.running = running;
    this.simulating.textContent = t("Stop");
    fill(this.result, h("p", { class: "soft" }, t("Simulation running…")));
    try {
      const query = api.query({ minutes: this.minutes.value });
      await api.lines(`/v1/simulate?${query}`, (text) => {
        const found = JSON.parse(text);
        if (found.error) throw new api.Problem(0, found.error);
        fill(this.result, simulated(found), imported(found.imported));
      }, { signal: running.signal, body: this.text.value, type: TYPE });
    } catch (error) {
      if (running.signal.aborted) fill(this.result, h("p", { class: "soft" }, t("Cancelled.")));
      else this.complain(error);
    }
    this.running = null;
    this.simulating.textContent = t("Simulate");
  }

  // With the line, which is shown.
  complain(error) {
    const where = error.line ? `${t("line")} ${error.line}: ` : "";
    fill(this.result, h("p", { class: "bad", role: "alert" }, where + (error.hint ? `${error.message}; ${error.hint}` : error.message)));
    if (!error.line) return;
    const lines = this.text.value.split("\n");
    const begin = lines.slice(0, error.line - 1).join("\n").length + (error.line > 1 ? 1 : 0);
    this.text.setSelectionRange(begin, begin + (lines[error.line - 1] ?? "").length);
    this.text.focus();
  }

  async plan() {
    fill(this.result, h("p", { class: "soft" }, "…"));
    try {
      const found = await api.post("/v1/plan", this.text.value, TYPE);
      fill(this.result, h("p", { class: found.fits ? "good" : "bad" }, t(found.fits ? "Every instance would get a node." : "Some instances would stay pending.")),
        part(t("Would be placed"), found.placements, (each) => `${each.namespace}/${each.instance} → ${each.node}`),
        part(t("Would stay pending"), found.pending, (each) => `${each.namespace}/${each.instance}: ${each.message}`),
        part(t("Would be evicted"), found.victims, (each) => `${each.namespace}/${each.instance} (${each.makes_room_for})`),
        imported(found.imported));
    } catch (error) {
      this.complain(error);
    }
  }

  async apply() {
    try {
      const found = await api.post("/v1/apply", this.text.value, TYPE);
      fill(this.result, h("ul", {}, (found.results ?? []).map((each) => h("li", {}, `${each.kind ?? ""} ${each.namespace ?? ""}/${each.name ?? ""} ${each.action ?? each.outcome ?? ""}`))), imported(found.imported));
    } catch (error) {
      this.complain(error);
    }
  }
}

// Summary of a simulation by phase, with links to the full report.
function simulated({ report, page, scenario }) {
  const save = (text, type, name) => h("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name }, name);
  const range = ({ least, most }) => (least === most ? `${least}` : `${least}–${most}`);
  return [
    h("p", { class: report.passed ? "good" : "bad" }, t(report.passed ? "All expectations are met." : "Some expectations are not met."),
      h("span", { class: "soft" }, ` ${report.seeds.length} seeds`)),
    report.failures.length ? h("ul", {}, report.failures.slice(0, 50).map((each) => h("li", {}, `${each.phase}: ${each.expectation}: ${each.message}`))) : null,
    report.strategies.map((strategy) => h("section", { class: "sheet" }, h("h2", {}, strategy.name),
      h("div", { class: "wide", role: "region", tabindex: "0", "aria-label": strategy.name }, h("table", { class: "scores" },
        h("thead", {}, h("tr", {}, [t("Phase"), t("Waiting"), t("Would be evicted"), t("Evicted"), t("Down (s)"), t("Message")].map((each) => h("th", { scope: "col" }, each)))),
        h("tbody", {}, strategy.phases.map((each) => h("tr", {}, h("th", { scope: "row" }, each.name), h("td", {}, range(each.pending)), h("td", {}, range(each.preemptions)),
          h("td", {}, range(each.evictions)), h("td", {}, `${Math.round(each.down_seconds.median)}`), h("td", {}, Object.keys(each.pending_reasons).join("; "))))))),
      placements(strategy))),
    h("p", { class: "row" }, save(page, "text/html", "report.html"), save(scenario, "application/yaml", "scenario.yaml"),
      h("span", { class: "soft" }, "mandor simulate scenario.yaml")),
  ];
}

// Placement at the end of a typical run.
function placements(strategy) {
  const nodes = Object.entries(strategy.typical.phases.at(-1).nodes);
  return h("details", { open: nodes.length < 20 }, h("summary", {}, t("Nodes")),
    h("ul", {}, nodes.slice(0, 200).map(([name, each]) => h("li", {}, `${name}: ${each.instances.slice(0, 50).join(", ") || "-"}`))));
}

function part(title, items, of) {
  if (!items?.length) return null;
  return h("section", { class: "sheet" }, h("h2", {}, `${title}: ${items.length}`), h("ul", {}, items.slice(0, 200).map((each) => h("li", {}, of(each)))));
}

function imported(report) {
  const left = report?.unmapped ?? report?.left ?? report?.notes ?? [];
  return part(t("Not imported"), left, (each) => (typeof each === "string" ? each : [each.file, each.line, each.path ?? each.key, each.why ?? each.message].filter(Boolean).join(": ")));
}
