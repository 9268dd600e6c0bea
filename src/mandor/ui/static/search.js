// Search: suggests names while typing; selection by arrow keys or mouse.

import * as live from "./live.js";
import { fill, h } from "./dom.js";
import { t } from "./words.js";

const SHOWN_MOST = 12;

// Orders matches: equal names, then prefixes, then substrings.
export function matches(text, kinds, most = SHOWN_MOST) {
  const wanted = text.trim().toLowerCase();
  const found = [[], [], []];
  if (!wanted) return [];
  for (const kind of kinds) {
    for (const each of live.all(kind)) {
      const at = each.meta.name.indexOf(wanted);
      if (at < 0) continue;
      const rank = found[each.meta.name === wanted ? 0 : at ? 2 : 1];
      if (rank.length < most) rank.push(each);
    }
  }
  return found.flat().slice(0, most);
}

export class Search {
  // `go` is called with the object that was chosen, or with undefined where nothing is called so.
  constructor(kinds, go) {
    Object.assign(this, { kinds, go, found: [], chosen: -1 });
    this.field = h("input", { type: "search", id: "search", role: "combobox", autocomplete: "off", "aria-label": t("Search"), "aria-expanded": "false",
      "aria-controls": "found", placeholder: `${t("Search")}  /`, oninput: () => this.look(), onkeydown: (event) => this.press(event), onblur: () => this.close() });
    this.list = h("ul", { id: "found", role: "listbox", "aria-label": t("Found"), hidden: true });
    this.element = h("form", { role: "search", onsubmit: (event) => { event.preventDefault(); this.choose(Math.max(0, this.chosen)); } }, this.field, this.list);
  }

  look() {
    this.found = matches(this.field.value, this.kinds);
    this.mark(-1);
    fill(this.list, this.found.map((each, index) => h("li", { role: "option", id: `found-${index}`, onmousedown: (event) => { event.preventDefault(); this.choose(index); } },
      each.meta.namespace ? h("span", { class: "soft" }, `${each.meta.namespace}/`) : null, each.meta.name, " ", h("span", { class: "soft" }, t(each.kind)))));
    this.list.hidden = !this.found.length;
    this.field.setAttribute("aria-expanded", `${!this.list.hidden}`);
  }

  press(event) {
    if (event.key === "Escape" && !this.list.hidden) { this.close(); event.stopPropagation(); }
    if ((event.key !== "ArrowDown" && event.key !== "ArrowUp") || !this.found.length) return;
    event.preventDefault();
    const step = event.key === "ArrowDown" ? 1 : -1;
    this.mark((this.chosen + step + this.found.length) % this.found.length);
  }

  mark(index) {
    this.list.children[this.chosen]?.removeAttribute("aria-selected");
    this.chosen = index;
    this.list.children[index]?.setAttribute("aria-selected", "true");
    if (index < 0) this.field.removeAttribute("aria-activedescendant");
    else this.field.setAttribute("aria-activedescendant", `found-${index}`);
  }

  // What is there now counts: it may be newer than the list.
  choose(index) {
    if (!this.field.value.trim()) return;
    const chosen = this.chosen < 0 && !index ? matches(this.field.value, this.kinds)[0] : this.found[index];
    this.close();
    this.go(chosen);
  }

  close() {
    this.list.hidden = true;
    this.field.setAttribute("aria-expanded", "false");
    this.mark(-1);
  }
}
