// Elements without a framework: h("a", {href: "#/"}, "text"), and a list that draws only the lines that are seen.

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

// How full something is: much is a warning. For what is good when it is whole, see `progress`.
export const bar = (share, label) => line(share, label, (percent) => (percent >= 95 ? "full" : percent >= 80 ? "high" : ""));
export const progress = (share, label) => line(share, label, () => "");

function line(share, label, kind) {
  const percent = Math.max(0, Math.min(100, Math.round(100 * share)));
  return h("span", { class: "bar", role: "img", "aria-label": `${label} ${percent} %`, title: `${percent} %` },
    h("i", { class: kind(percent), "width%": percent }));
}

const LINE = 36;

// Thousands of lines cost as much as thirty.
export class List {
  constructor(columns, label) {
    this.columns = columns;
    this.items = [];
    this.space = h("div", { class: "space", role: "rowgroup" });
    const head = h("div", { class: "line head", role: "row" }, columns.map((each) => h("span", { role: "columnheader" }, each.name)));
    this.element = h("div", { class: "list", role: "table", "aria-label": label, tabindex: "0" }, h("div", { role: "rowgroup" }, head), this.space);
    this.template = columns.map((each) => each.width ?? "1fr").join(" ");
    head.style.gridTemplateColumns = this.template;
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
  }

  show(items) {
    this.items = items;
    this.space.style.height = `${items.length * LINE}px`;
    this.draw();
  }

  draw() {
    const top = Math.max(0, this.element.scrollTop - LINE);
    const first = Math.max(0, Math.floor(top / LINE) - 5);
    const count = Math.ceil((this.element.clientHeight || 600) / LINE) + 12;
    const lines = this.items.slice(first, first + count).map((item, index) => {
      const line = h("div", { class: "line", role: "row" }, this.columns.map((each) => h("span", { role: "cell" }, each.of(item))));
      line.style.gridTemplateColumns = this.template;
      line.style.top = `${(first + index) * LINE}px`;
      return line;
    });
    const focused = this.space.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    this.space.replaceChildren(...lines);
    if (focused) this.space.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}
