// Explanation of a placement: reasons by node, scores and suggested changes.

import * as api from "../api.js";
import { fill, h, progress } from "../dom.js";
import { t } from "../words.js";

const MOST_OFTEN = 2000;

export class Explained {
  constructor(address) {
    this.address = address;
    this.element = h("div", { class: "sheet" });
    this.asked = 0;
    this.waiting = false;
  }

  // Not more often than every two seconds, however much happens.
  refresh() {
    if (this.waiting) return;
    this.waiting = true;
    setTimeout(async () => {
      this.waiting = false;
      this.asked = Date.now();
      try {
        const found = await api.get(`${this.address}&nodes=true`);
        fill(this.element, found.instances ? [h("p", {}, found.summary), found.instances.map(one)] : one(found));
      } catch (error) {
        fill(this.element, h("p", { class: "soft" }, error.message));
      }
    }, Math.max(0, this.asked + MOST_OFTEN - Date.now()));
  }
}

function one(found) {
  return h("article", {},
    h("h3", {}, found.instance), h("p", {}, found.summary),
    found.remedies?.length ? [h("h4", {}, t("Suggested changes")), h("ul", {}, found.remedies.map((each) => h("li", {}, `${each.text} → ${each.node}`)))] : null,
    found.relaxed?.length ? h("p", { class: "warn" }, found.relaxed.join(", ")) : null,
    found.scores?.length ? scores(found) : null,
    found.nodes?.length ? h("details", {}, h("summary", {}, t("Reasons by node")),
      h("ul", {}, found.nodes.slice(0, 200).map((each) => h("li", { class: each.fits ? "good" : "" }, `${each.node}: ${each.fits ? "✓" : `${each.plugin}: ${each.why}`}`)))) : null);
}

function scores(found) {
  const most = Math.max(1, ...found.scores.map((each) => each.total));
  const table = h("table", { class: "scores" }, h("caption", {}, t("Scores")),
    h("thead", {}, h("tr", {}, [t("Node"), "", ...(found.scores[0].parts ?? []).map((each) => each.plugin)].map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", {}, found.scores.map((each) => h("tr", {}, h("th", { scope: "row" }, each.node === found.node ? `● ${each.node}` : each.node),
      h("td", {}, progress(each.total / most, each.node), ` ${each.total}`), (each.parts ?? []).map((part) => h("td", {}, `${part.score}×${part.weight}`))))));
  return h("div", { class: "wide", role: "region", tabindex: "0", "aria-label": t("Scores") }, table);
}
