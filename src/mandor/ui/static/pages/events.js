// Events, the latest first.

import { fill, h } from "../dom.js";
import { t } from "../words.js";
import { events } from "./parts.js";

export class EventsPage {
  enter(main) {
    this.filter = h("input", { type: "search", "aria-label": t("Search"), oninput: () => this.update(new Set(["event"])) });
    this.list = h("div", { class: "sheet" });
    fill(main, h("h1", {}, t("Events")), h("p", {}, this.filter), this.list);
    this.update(new Set(["event"]));
  }

  update(kinds) {
    if (!kinds.has("event")) return;
    const wanted = this.filter.value.toLowerCase();
    fill(this.list, events(({ spec }) => !wanted || `${spec.about} ${spec.reason} ${spec.message}`.toLowerCase().includes(wanted), 200));
  }
}
