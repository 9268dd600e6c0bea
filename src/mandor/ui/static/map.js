// Cluster map on a canvas: a box per node with its instances; only changed boxes are drawn again.

import * as live from "./live.js";
import { h } from "./dom.js";
import { place } from "./main.js";

const PHASES = { Pending: "#a16207", Reserved: "#a16207", Starting: "#2563eb", Running: "#15803d", Stopping: "#7c3aed", Failed: "#b91c1c", Lost: "#b91c1c", Succeeded: "#64748b", Stopped: "#94a3b8" };
const OVER = new Set(["Succeeded", "Failed", "Stopped", "Lost"]);
const HEIGHT_WANTED = 760;
const [EDGE, INSET] = [3, 5];

const hues = new Map();

function hue(text) {
  if (hues.has(text)) return hues.get(text);
  let hash = 0;
  for (const letter of text) hash = (hash * 31 + letter.codePointAt(0)) % 3600;
  const found = `hsl(${(hash * 137) % 360} 55% 45%)`;
  if (hues.size < 10000) hues.set(text, found);
  return found;
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

const instancesOn = (node) => [...(live.placed.get(node.meta.name)?.values() ?? [])].filter((each) => !OVER.has(each.status?.phase));

// Computes the layout: rows of boxes, each with an optional title and cells.
function lay(width, nodes) {
  const most = Math.max(1, ...nodes.map((each) => live.placed.get(each.meta.name)?.size ?? 0));
  const many = Math.max(20, Math.min(56, Math.floor(Math.sqrt((width * HEIGHT_WANTED) / nodes.length))));
  const size = nodes.length > 400 ? many : nodes.length > 60 ? 92 : 150;
  const columns = Math.max(1, Math.floor(width / size));
  const step = width / columns;
  const title = size > 60 ? 18 : 2;
  const [inner, tall] = [step - 2 * EDGE - 2 * INSET + 1, size - 2 * EDGE - title - INSET];
  let cell = nodes.length > 60 ? 14 : 24;
  while (cell > 2 && Math.floor(inner / cell) * Math.floor(tall / cell) < most) cell -= 1;
  return { width, size, columns, step, title, cell, across: Math.max(1, Math.floor(inner / cell)), deep: Math.max(1, Math.floor(tall / cell)), rows: Math.ceil(nodes.length / columns) || 1 };
}

export class ClusterMap {
  constructor() {
    this.by = "workload";
    this.nodes = [];
    this.canvas = h("canvas", { tabindex: "0", role: "img" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.element = h("div", { class: "map" }, this.canvas, this.tip);
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("click", (event) => { const found = this.at(event); if (found) location.hash = place(found); });
    this.watcher = new ResizeObserver(() => { if (this.element.clientWidth !== this.layout?.width) this.draw(); });
    this.watcher.observe(this.element);
    this.theme = new MutationObserver(() => this.draw());
    this.theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  }

  leave() {
    this.watcher.disconnect();
    this.theme.disconnect();
  }

  // `names`: the nodes on which something changed; null: perhaps on all of them.
  update(kinds, names) {
    const coloured = this.by === "priority" && (kinds.has("workload") || kinds.has("priority-class"));
    if (!kinds.has("node") && !kinds.has("instance") && !coloured) return;
    const nodes = live.all("node");
    const layout = lay(this.element.clientWidth, nodes);
    const same = nodes.length === this.nodes.length && nodes.every((each, index) => each.meta.name === this.nodes[index].meta.name);
    if (!names || coloured || !same || JSON.stringify(layout) !== JSON.stringify(this.layout)) { this.draw(); return; }
    this.nodes = nodes;
    nodes.forEach((node, index) => { if (names.has(node.meta.name)) this.box(node, index); });
    this.tell();
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width) return;
    this.nodes = live.all("node");
    this.layout = lay(width, this.nodes);
    const ratio = devicePixelRatio || 1;
    const height = this.layout.rows * this.layout.size;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    this.pen = this.canvas.getContext("2d");
    this.pen.scale(ratio, ratio);
    this.pen.font = "11px system-ui, sans-serif";
    const style = getComputedStyle(document.documentElement);
    this.ink = Object.fromEntries(["sheet", "line", "ink"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
    this.nodes.forEach((node, index) => this.box(node, index));
    this.tell();
  }

  tell() {
    this.canvas.setAttribute("aria-label", `${this.nodes.length} nodes, ${live.objects.instance.size} instances`);
  }

  corner(index) {
    const { columns, step, size } = this.layout;
    return [(index % columns) * step + EDGE, Math.floor(index / columns) * size + EDGE];
  }

  box(node, index) {
    const { pen, layout: { step, size, title, cell, across, deep } } = this;
    const [x, y] = this.corner(index);
    const ready = node.status?.phase === "Ready";
    pen.clearRect(x - 1, y - 1, step - 2 * EDGE + 2, size - 2 * EDGE + 2);
    pen.fillStyle = this.ink.sheet;
    pen.fillRect(x, y, step - 2 * EDGE, size - 2 * EDGE);
    pen.strokeStyle = !ready || node.status?.pressure?.length ? "#b91c1c" : this.ink.line;
    pen.lineWidth = ready ? 1 : 2;
    pen.strokeRect(x + 0.5, y + 0.5, step - 2 * EDGE - 1, size - 2 * EDGE - 1);
    if (title > 10) {
      pen.fillStyle = this.ink.ink;
      pen.fillText(node.meta.name, x + 6, y + 14, step - 18);
    }
    instancesOn(node).slice(0, across * deep).forEach((instance, number) => {
      pen.fillStyle = COLOURS[this.by](instance, node);
      pen.globalAlpha = instance.status?.ready || this.by === "phase" ? 1 : 0.55;
      pen.fillRect(x + INSET + (number % across) * cell, y + title + 2 + Math.floor(number / across) * cell, cell - 1, cell - 1);
    });
    pen.globalAlpha = 1;
  }

  // The instance under the mouse, or else the node.
  at(event) {
    if (!this.layout) return undefined;
    const { columns, step, size, title, cell, across } = this.layout;
    const frame = this.canvas.getBoundingClientRect();
    const [left, top] = [event.clientX - frame.left, event.clientY - frame.top];
    const index = Math.floor(top / size) * columns + Math.min(columns - 1, Math.floor(left / step));
    const node = this.nodes[index];
    if (!node) return undefined;
    const [x, y] = this.corner(index);
    const [column, row] = [Math.floor((left - x - INSET) / cell), Math.floor((top - y - title - 2) / cell)];
    return (column >= 0 && column < across && row >= 0 && instancesOn(node)[row * across + column]) || node;
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
