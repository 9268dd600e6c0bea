// Settings: theme, language, the logged-in user, and keyboard shortcuts.

import { fill, h } from "../dom.js";
import { draw, logOut, session } from "../main.js";
import { current, speak, t } from "../words.js";
import { facts } from "./parts.js";

export class SettingsPage {
  enter(main) {
    const theme = h("select", { id: "theme", onchange: () => {
      if (theme.value) { document.documentElement.dataset.theme = theme.value; localStorage.setItem("mandor.theme", theme.value); }
      else { delete document.documentElement.dataset.theme; localStorage.removeItem("mandor.theme"); }
    } }, [["", "system default"], ["light", "light"], ["dark", "dark"]].map(([value, name]) =>
      h("option", { value, selected: value === (localStorage.getItem("mandor.theme") ?? "") }, t(name))));
    const language = h("select", { id: "language", onchange: () => { speak(language.value); draw(true); } },
      [["en", "English"], ["id", "Bahasa Indonesia"]].map(([value, name]) => h("option", { value, selected: value === current() }, name)));
    fill(main, h("h1", {}, t("Settings")),
      h("div", { class: "sheet" },
        h("p", { class: "row" }, h("label", { for: "theme" }, t("Theme")), theme),
        h("p", { class: "row" }, h("label", { for: "language" }, t("Language")), language)),
      h("div", { class: "sheet" }, facts([
        [t("Logged in as"), `${session.you.identity} (${session.you.role})`], ["Mandor", session.version], [t("Cluster"), session.cluster?.id ?? ""],
      ]), h("p"), h("button", { onclick: logOut }, t("Log out"))),
      h("div", { class: "sheet" }, h("h2", {}, t("Keys")),
        h("p", {}, [["/", "Search"], ["o", "Overview"], ["n", "Nodes"], ["w", "Workloads"], ["i", "Instances"], ["b", "Bare metal"], ["p", "Plan"], ["e", "Events"], ["s", "Settings"]]
          .map(([key, name]) => [h("kbd", {}, key), ` ${t(name)}  `]))));
  }
}
