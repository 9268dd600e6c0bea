// The cluster map: each node a box, filled by its instances; drawn on a canvas, so that thousands stay smooth.

import * as live from "./live.js";
import { h } from "./dom.js";
import { place } from "./main.js";

const PHASES = { Pending: "#a16207", Reserved: "#a16207", Starting: "#2563eb", Running: "#15803d", Stopping: "#7c3aed", Failed: "#b91c1c", Lost: "#b91c1c", Succeeded: "#64748b", Stopped: "#94a3b8" };
const OVER = new Set(["Succeeded", "Failed", "Stopped", "Lost"]);

function hue(text) {
  let hash = 0;
  for (const letter of text) hash = (hash * 31 + letter.codePointAt(0)) % 3600;
  return `hsl(${(hash * 137) % 360} 55% 45%)`;
}

function priorityOf(instance) {
  const given = live.find("workload", instance.meta.namespace, instance.spec.workload)?.spec.priority ?? 0;
  return typeof given === "number" ? given : live.find("priority-class", "", given)?.spec.value ?? 0;
}

const COLOURS = {
  workload: (instance) => hue(`${instance.meta.namespace}/${instance.spec.workload}`),
  phase: (instance) => PHASES[instance.status?.phase ?? "Pending"] ?? "#64748b",
  priority: (instance) => { const value = priorityOf(instance); return value > 1000 ? "#b91c1c" : value > 0 ? "#c2410c" : value < 0 ? "#64748b" : "#15803d"; },
  pressure: (instance, node) => (node.status?.pressure?.length ? "#b91c1c" : "#15803d"),
};

export class ClusterMap {
  constructor() {
    this.by = "workload";
    this.canvas = h("canvas", { tabindex: "0", role: "img" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.element = h("div", { class: "map" }, this.canvas, this.tip);
    this.boxes = [];
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("click", (event) => { const found = this.at(event); if (found) location.hash = place(found); });
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.element);
  }

  leave() { this.watcher.disconnect(); }

  draw() {
    const width = this.element.clientWidth;
    if (!width) return;
    const on = new Map();
    for (const each of live.objects.instance.values()) {
      if (!each.spec.node || OVER.has(each.status?.phase)) continue;
      if (!on.has(each.spec.node)) on.set(each.spec.node, []);
      on.get(each.spec.node).push(each);
    }
    const nodes = live.all("node").sort((a, b) => a.meta.name.localeCompare(b.meta.name, undefined, { numeric: true }));
    const most = Math.max(1, ...nodes.map((each) => on.get(each.meta.name)?.length ?? 0));
    const size = nodes.length > 400 ? 56 : nodes.length > 60 ? 92 : 150;
    const columns = Math.max(1, Math.floor(width / size));
    const step = width / columns;
    const rows = Math.ceil(nodes.length / columns) || 1;
    const title = size > 60 ? 18 : 4;
    const cell = Math.max(2, Math.min(nodes.length > 60 ? 14 : 24, Math.floor(Math.sqrt(((step - 14) * (size - title - 12)) / most))));
    const ratio = devicePixelRatio || 1;
    const style = getComputedStyle(document.documentElement);
    const height = rows * size;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    this.canvas.setAttribute("aria-label", `${nodes.length} nodes, ${live.objects.instance.size} instances`);
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    this.boxes = [];
    nodes.forEach((node, index) => {
      const x = (index % columns) * step + 3;
      const y = Math.floor(index / columns) * size + 3;
      const ready = node.status?.phase === "Ready";
      pen.fillStyle = style.getPropertyValue("--sheet");
      pen.fillRect(x, y, step - 6, size - 6);
      pen.strokeStyle = !ready || node.status?.pressure?.length ? "#b91c1c" : style.getPropertyValue("--line");
      pen.lineWidth = ready ? 1 : 2;
      pen.strokeRect(x + 0.5, y + 0.5, step - 7, size - 7);
      if (title > 10) {
        pen.fillStyle = style.getPropertyValue("--ink");
        pen.fillText(node.meta.name, x + 6, y + 14, step - 18);
      }
      const inner = Math.max(1, Math.floor((step - 14) / cell));
      (on.get(node.meta.name) ?? []).forEach((instance, number) => {
        const left = x + 5 + (number % inner) * cell;
        const top = y + title + 2 + Math.floor(number / inner) * cell;
        if (top + cell > y + size - 6) return;
        pen.fillStyle = COLOURS[this.by](instance, node);
        pen.globalAlpha = instance.status?.ready || this.by === "phase" ? 1 : 0.55;
        pen.fillRect(left, top, cell - 1, cell - 1);
        pen.globalAlpha = 1;
        this.boxes.push([left, top, cell, cell, instance]);
      });
      this.boxes.push([x, y, step - 6, size - 6, node]);
    });
  }

  at(event) {
    const frame = this.canvas.getBoundingClientRect();
    const x = event.clientX - frame.left;
    const y = event.clientY - frame.top;
    return this.boxes.find(([left, top, width, height]) => x >= left && x < left + width && y >= top && y < top + height)?.[4];
  }

  point(event) {
    const found = this.at(event);
    this.canvas.style.cursor = found ? "pointer" : "default";
    this.tip.hidden = !found;
    if (!found) return;
    const frame = this.canvas.getBoundingClientRect();
    this.tip.textContent = found.kind === "node"
      ? `${found.meta.name}: ${found.status?.phase}`
      : `${found.meta.namespace}/${found.meta.name}: ${found.status?.phase}`;
    this.tip.style.left = `${Math.min(event.clientX - frame.left + 12, frame.width - 200)}px`;
    this.tip.style.top = `${event.clientY - frame.top + 14}px`;
  }
}
