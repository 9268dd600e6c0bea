// Panel: login, routing between pages, and keyboard shortcuts.

import * as api from "./api.js";
import * as live from "./live.js";
import { fill, h } from "./dom.js";
import { Search } from "./search.js";
import { current, speak, t } from "./words.js";
import { BareMetalPage, SparePage, TaskPage } from "./pages/baremetal.js";
import { EventsPage } from "./pages/events.js";
import { InstancePage, InstancesPage } from "./pages/instances.js";
import { NodePage, NodesPage } from "./pages/nodes.js";
import { OverviewPage } from "./pages/overview.js";
import { PlanPage } from "./pages/plan.js";
import { SettingsPage } from "./pages/settings.js";
import { WorkloadPage, WorkloadsPage } from "./pages/workloads.js";

const PAGES = [
  { path: "", name: "Overview", key: "o", page: OverviewPage },
  { path: "nodes", name: "Nodes", key: "n", page: NodesPage, one: NodePage },
  { path: "workloads", name: "Workloads", key: "w", page: WorkloadsPage, one: WorkloadPage },
  { path: "instances", name: "Instances", key: "i", page: InstancesPage, one: InstancePage },
  { path: "baremetal", name: "Bare metal", key: "b", page: BareMetalPage, kinds: live.BARE_METAL },
  { path: "tasks", within: "baremetal", name: "Tasks", page: BareMetalPage, one: TaskPage, kinds: live.BARE_METAL },
  { path: "spares", within: "baremetal", name: "Spares", page: BareMetalPage, one: SparePage, kinds: live.BARE_METAL },
  { path: "plan", name: "Plan", key: "p", page: PlanPage },
  { path: "events", name: "Events", key: "e", page: EventsPage },
  { path: "settings", name: "Settings", key: "s", page: SettingsPage },
];

const REFRESH_SECONDS = 30;

const app = document.getElementById("app");
export const session = { you: null, cluster: null, version: "" };
let page = null;
let following = null;
let also = null;
let main = null;

export const mayChange = () => !["viewer", undefined].includes(session.you?.role);
export const seesAll = () => session.you?.namespaces?.includes("*");

export function say(text) {
  document.querySelector(".toast")?.remove();
  const toast = h("div", { class: "toast", role: "status" }, text);
  document.body.append(toast);
  setTimeout(() => toast.remove(), 6000);
}

// Runs the action of a button, and shows its error with the hint.
export async function attempt(work, done) {
  try {
    await work();
    if (done) say(done);
  } catch (error) {
    say(error.hint ? `${error.message}; ${error.hint}` : error.message);
  }
}

async function begin() {
  speak(current());
  try {
    const about = await api.get("/v1");
    Object.assign(session, { you: about.you, cluster: about.cluster, version: about.version });
  } catch (error) {
    if (error.status === 401 || error.status === 403) logIn(error);
    else {
      fill(app, h("main", { id: "main" }, h("h1", {}, "Mandor"), h("p", { class: "bad" }, error.message)));
      setTimeout(begin, 3000);
    }
    return;
  }
  stop();
  following = new AbortController();
  live.follow(following.signal, logIn);
  draw(true);
}

function stop() {
  following?.abort();
  followAlso(undefined);
}

// Kinds that only some pages need are watched while one of these pages is open.
function followAlso(kinds) {
  if (kinds && !also) {
    also = new AbortController();
    live.follow(also.signal, logIn, kinds);
  } else if (!kinds && also) {
    also.abort();
    also = null;
    live.forget(live.BARE_METAL);
  }
}

function logIn(error) {
  stop();
  const field = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); api.use(field.value.trim()); begin(); } },
    h("label", { for: "token" }, t("Token")), field,
    h("p", { class: "soft" }, t("The token that `mandor token create` printed")),
    error?.status && field.value === "" && sessionStorage.getItem("mandor.token") ? h("p", { class: "bad", role: "alert" }, error.message) : null,
    h("button", { class: "first" }, t("Log in")));
  fill(app, h("main", { id: "main", class: "login sheet" }, h("h1", {}, "Mandor"), form));
  field.focus();
}

export function logOut() {
  api.use("");
  location.hash = "#/";
  begin();
}

function route() {
  const [path, ...rest] = location.hash.replace(/^#\/?/, "").split("?")[0].split("/").map(decodeURIComponent);
  const found = PAGES.find((each) => each.path === path) ?? PAGES[0];
  return { found, page: rest.length && found.one ? new found.one(...rest) : new found.page() };
}

// The frame of the page is made once, so that typed text survives updates of the content.
function frame() {
  const search = new Search(Object.keys(PLACES), (found) => { if (found) location.hash = place(found); else say(t("No items.")); });
  const light = h("span", { class: "soft", role: "status" });
  main = h("main", { id: "main", tabindex: "-1" });
  fill(app,
    h("header", {},
      h("a", { class: "brand", href: "#/" }, "Mandor"),
      h("nav", { "aria-label": "Mandor" }, PAGES.filter((each) => !each.within).map((each) => h("a", { href: `#/${each.path}` }, t(each.name)))),
      search.element, light),
    main);
  document.querySelector(".skip").textContent = t("Skip to the content");
  showLight(light);
}

// `again`: draw anew after a change of language or a login.
export function draw(again = false) {
  page?.leave?.();
  if (again || !main?.isConnected) frame();
  const { found, page: next } = route();
  page = next;
  followAlso(found.kinds);
  const here = `#/${found.within ?? found.path}`;
  for (const each of document.querySelectorAll("nav a")) {
    if (each.getAttribute("href") === here) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  document.title = `${t(found.name)} · Mandor`;
  // Whoever was in the old page is at the beginning of the new one.
  const inside = main.contains(document.activeElement) || document.activeElement === document.body;
  page.enter(main);
  if (inside) main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function showLight(light) {
  light.textContent = live.state.connected ? `● ${t("Connected")}` : `○ ${t("Connecting…")}`;
}

const PLACES = { node: "nodes", workload: "workloads", instance: "instances", task: "tasks", spare: "spares" };

export const place = (object) =>
  `#/${PLACES[object.kind]}/${[...(object.meta.namespace ? [object.meta.namespace] : []), object.meta.name].map(encodeURIComponent).join("/")}`;

live.listen((kinds, nodes) => {
  const light = document.querySelector("header [role=status]");
  if (light && kinds.has("connection")) showLight(light);
  if (page && main?.isConnected) page.update?.(kinds, nodes);
});

// Refreshes the displayed ages.
setInterval(() => { if (page && main?.isConnected && !document.hidden) page.update?.(new Set(["node", "workload", "instance", "event", "task", "spare"])); }, REFRESH_SECONDS * 1000);

addEventListener("hashchange", () => { if (session.you) draw(); });
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, .terminal");
  if (event.ctrlKey || event.metaKey || event.altKey || !session.you) return;
  if (event.key === "Escape" && typing) typing.blur();
  if (typing) return;
  if (event.key === "/") { event.preventDefault(); document.getElementById("search")?.focus(); }
  const wanted = PAGES.find((each) => each.key === event.key);
  if (wanted) location.hash = `#/${wanted.path}`;
});

const theme = localStorage.getItem("mandor.theme");
if (theme) document.documentElement.dataset.theme = theme;
begin();
