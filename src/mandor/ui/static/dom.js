// Elements without a framework: h("a", {href: "#/"}, "text"), and a list that draws only the visible rows.

export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "width%") element.style.width = `${value}%`;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

// Meter of a used share; a high share is a warning. For a share that should reach 100 %, see `progress`.
export const bar = (share, label) => line(share, label, (percent) => (percent >= 95 ? "full" : percent >= 80 ? "high" : ""));
export const progress = (share, label) => line(share, label, () => "");

function line(share, label, kind) {
  const percent = Math.max(0, Math.min(100, Math.round(100 * share)));
  return h("span", { class: "bar", role: "img", "aria-label": `${label} ${percent} %`, title: `${percent} %` },
    h("i", { class: kind(percent), "width%": percent }));
}

const LINE = 36;
const STALE_MILLISECONDS = 10000;

// Only the visible rows exist in the document, and only changed rows are drawn again.
export class List {
  // `mark`: what a line shows besides its item, if it shows more.
  constructor(columns, label, mark = () => "") {
    this.columns = columns;
    this.mark = mark;
    this.items = [];
    this.lines = new Map();
    this.space = h("div", { class: "space", role: "rowgroup" });
    const head = h("div", { class: "line head", role: "row", "aria-rowindex": 1 }, columns.map((each) => h("span", { role: "columnheader" }, each.name)));
    this.element = h("div", { class: "list", role: "table", "aria-label": label, tabindex: "0" }, h("div", { role: "rowgroup" }, head), this.space);
    this.template = columns.map((each) => each.width ?? "1fr").join(" ");
    head.style.gridTemplateColumns = this.template;
    this.held = this.late = false;
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.element.addEventListener("pointerdown", (event) => { if (event.target.closest("a, button")) this.hold(); });
  }

  // What is pressed stays until it is released: a click on a line that is made again meanwhile would be lost.
  hold() {
    this.held = true;
    const free = () => {
      for (const each of ["pointerup", "pointercancel"]) removeEventListener(each, free);
      setTimeout(() => { this.held = false; if (this.late) this.draw(); });
    };
    for (const each of ["pointerup", "pointercancel"]) addEventListener(each, free);
  }

  show(items) {
    this.items = items;
    this.space.style.height = `${items.length * LINE}px`;
    this.element.setAttribute("aria-rowcount", items.length + 1);
    if (this.held) this.late = true;
    else this.draw();
  }

  draw() {
    this.late = false;
    const top = Math.max(0, this.element.scrollTop - LINE);
    const first = Math.max(0, Math.floor(top / LINE) - 5);
    const count = Math.ceil((this.element.clientHeight || 600) / LINE) + 12;
    const focused = this.space.contains(document.activeElement) ? document.activeElement : null;
    const old = this.lines;
    const seen = this.items.slice(first, first + count).map((item) => [item, this.line(item, old)]);
    this.lines = new Map(seen);
    for (const [item, line] of old) if (this.lines.get(item) !== line) line.element.remove();
    let place = this.space.firstChild;
    seen.forEach(([, line], index) => {
      line.stand(first + index);
      if (line.element === place) place = place.nextSibling;
      else this.space.insertBefore(line.element, place);
    });
    if (focused && !focused.isConnected) this.space.querySelector(`[href="${CSS.escape(focused.getAttribute("href") ?? "")}"]`)?.focus({ preventScroll: true });
  }

  line(item, old) {
    const mark = this.mark(item);
    const line = old.get(item);
    return line && line.mark === mark && Date.now() - line.made < STALE_MILLISECONDS ? line : new Line(this.columns, this.template, item, mark);
  }
}

class Line {
  constructor(columns, template, item, mark) {
    Object.assign(this, { mark, made: Date.now(), at: -1 });
    this.element = h("div", { class: "line", role: "row" }, columns.map((each) => h("span", { role: "cell" }, each.of(item))));
    this.element.style.gridTemplateColumns = template;
  }

  stand(at) {
    if (this.at === at) return;
    this.at = at;
    this.element.style.transform = `translateY(${at * LINE}px)`;
    this.element.setAttribute("aria-rowindex", at + 2);
  }
}
