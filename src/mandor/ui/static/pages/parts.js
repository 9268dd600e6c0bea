// Parts of several pages: phases, events, facts.

import * as live from "../live.js";
import { h } from "../dom.js";
import { age, t } from "../words.js";

const GOOD = new Set(["Ready", "Running", "Succeeded", "Done", "Placed", "Confirmed"]);
const BAD = new Set(["Failed", "Lost", "Down", "RolledBack"]);
const OVER = new Set(["Released", "Cancelled", "Gone"]);

const tone = (text) => (GOOD.has(text) ? "good" : BAD.has(text) ? "bad" : OVER.has(text) ? "soft" : "warn");
export const phase = (text) => h("span", { class: tone(text) }, text ?? "-");
export const link = (href, text) => h("a", { href }, text);
export const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== undefined && value !== "" && value !== null)
  .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

export const events = (wanted, most = 50) => {
  const found = [];
  const happened = live.all("event");
  for (let at = happened.length - 1; at >= 0 && found.length < most; at -= 1) if (wanted(happened[at])) found.push(happened[at]);
  if (!found.length) return h("p", { class: "soft" }, t("No events yet."));
  return h("ul", { class: "events" }, found.map(({ spec }) => h("li", {},
    h("span", { class: "soft" }, `${age(spec.last_at)} · ${spec.about} · `),
    h("span", { class: spec.type === "warning" ? "warn" : "" }, spec.reason), `: ${spec.message}`,
    spec.count > 1 ? h("span", { class: "soft" }, ` ×${spec.count}`) : null)));
};

export const about = (kind, namespace, name) => {
  const wanted = namespace ? `${kind} ${namespace}/${name}` : `${kind} ${name}`;
  return (each) => each.spec.about === wanted;
};
