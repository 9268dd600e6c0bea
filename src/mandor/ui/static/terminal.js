// Terminal: draws a screen, and converts key events into input sequences.

import { h } from "./dom.js";
import { Screen } from "./screen.js";
import { t } from "./words.js";

const READ_MOST = 40;
const KEYS = { Enter: "\r", Backspace: "\x7f", Tab: "\t", Escape: "\x1b", Delete: "\x1b[3~", Insert: "\x1b[2~", PageUp: "\x1b[5~", PageDown: "\x1b[6~",
  F1: "\x1bOP", F2: "\x1bOQ", F3: "\x1bOR", F4: "\x1bOS", F5: "\x1b[15~", F6: "\x1b[17~", F7: "\x1b[18~", F8: "\x1b[19~", F9: "\x1b[20~", F10: "\x1b[21~" };
const MOVES = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F" };

// Returns the input sequence of a key; undefined: plain text, or a key of the browser.
export function sent(event, applicationKeys) {
  const { key, ctrlKey, altKey, shiftKey, metaKey } = event;
  if (metaKey || (key === "Tab" && shiftKey)) return undefined; // the way out
  if (MOVES[key]) {
    const held = 1 + (shiftKey ? 1 : 0) + (altKey ? 2 : 0) + (ctrlKey ? 4 : 0);
    return held > 1 ? `\x1b[1;${held}${MOVES[key]}` : `\x1b${applicationKeys ? "O" : "["}${MOVES[key]}`;
  }
  if (KEYS[key]) return `${altKey ? "\x1b" : ""}${KEYS[key]}`;
  if (ctrlKey && shiftKey) return undefined; // copy and paste
  if (ctrlKey && /^[a-z@[\\\]^_ ]$/i.test(key)) return String.fromCharCode(key === " " ? 0 : key.toUpperCase().charCodeAt(0) & 31);
  if (altKey && !ctrlKey && key.length === 1) return `\x1b${key}`;
  return undefined;
}

export class Terminal {
  // `send` takes what is typed; `resized` the new size.
  constructor(send, resized) {
    Object.assign(this, { send, resized, drawing: 0, shown: 0 });
    this.field = h("textarea", { class: "keys", rows: 1, "aria-label": t("Shell"), "aria-describedby": "way-out", autocapitalize: "off", autocomplete: "off", spellcheck: "false",
      onkeydown: (event) => this.press(event), oninput: () => this.typed(), onpaste: (event) => this.paste(event) });
    this.grid = h("div", { class: "grid", "aria-hidden": "true" });
    this.measure = h("span", { class: "measure", "aria-hidden": "true" }, "M".repeat(20));
    this.spoken = h("div", { class: "unseen", role: "log", "aria-label": t("Output") });
    this.element = h("div", { class: "terminal", onmouseup: () => { if (getSelection().isCollapsed) this.field.focus({ preventScroll: true }); } }, this.measure, this.grid, this.field, this.spoken);
    this.screen = new Screen(24, 80, send);
    this.watcher = new ResizeObserver(() => this.fit());
    this.watcher.observe(this.element);
  }

  fit() {
    const { width, height } = this.measure.getBoundingClientRect();
    if (!width) return;
    const style = getComputedStyle(this.element);
    const columns = Math.max(20, Math.floor((this.element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)) / (width / 20)));
    const rows = Math.max(5, Math.floor((this.element.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom)) / height));
    if (rows === this.screen.rows && columns === this.screen.columns) return;
    this.screen.resize(rows, columns);
    this.resized({ rows, columns });
    this.draw();
  }

  press(event) {
    if (event.isComposing) return;
    const text = sent(event, this.screen.modes.keys);
    if (text === undefined) return;
    event.preventDefault();
    this.send(text);
  }

  typed() {
    if (this.field.value) this.send(this.field.value.replace(/\n/g, "\r"));
    this.field.value = "";
  }

  paste(event) {
    event.preventDefault();
    const text = event.clipboardData.getData("text").replace(/\r?\n/g, "\r");
    this.send(this.screen.modes.paste ? `\x1b[200~${text}\x1b[201~` : text);
  }

  write(text) {
    this.screen.write(text);
    this.draw();
  }

  draw() {
    this.drawing ||= requestAnimationFrame(() => {
      this.drawing = 0;
      this.show();
    });
  }

  show() {
    const { screen, grid } = this;
    const below = this.element.scrollHeight - this.element.scrollTop - this.element.clientHeight < 40;
    const scrolled = Math.min(screen.history.length, screen.settled - this.shown);
    const past = screen.history.slice(screen.history.length - scrolled).map((line) => row(line, -1));
    this.shown = screen.settled;
    const fresh = screen.dirty;
    screen.dirty = new Set();
    const before = grid.childElementCount - screen.rows;
    if (scrolled || before < 0 || before > screen.history.length) {
      while (grid.childElementCount > Math.max(0, before)) grid.lastChild.remove();
      grid.append(...past, ...screen.grid.map((line, index) => row(line, this.cursor(index))));
      while (grid.childElementCount > screen.history.length + screen.rows) grid.firstChild.remove();
    } else for (const index of fresh) grid.children[before + index].replaceWith(row(screen.grid[index], this.cursor(index)));
    const spoken = [...past.map((each) => each.textContent.trimEnd()), ...(screen.other ? [] : screen.lines().slice(0, screen.y + 1))].slice(-READ_MOST).join("\n");
    if (this.spoken.textContent !== spoken) this.spoken.textContent = spoken;
    if (below) this.element.scrollTop = this.element.scrollHeight;
  }

  cursor(index) { return this.screen.modes.cursor && index === this.screen.y ? this.screen.x : -1; }

  leave() {
    this.watcher.disconnect();
    cancelAnimationFrame(this.drawing);
  }
}

function row(line, cursor) {
  const spans = [];
  for (let at = 0; at < line.length;) {
    const { style } = line[at];
    let end = at + 1;
    while (end < line.length && line[end].style === style && end !== cursor && at !== cursor) end += 1;
    spans.push(span(line.slice(at, end).map((each) => each.text).join(""), style, at === cursor));
    at = end;
  }
  return h("div", {}, spans);
}

function span(text, style, cursor) {
  const [front, back] = style.inverse ? [style.bg || "ground", style.fg || "ink"] : [style.fg, style.bg];
  const names = [cursor ? "cursor" : "", style.bold ? "bold" : "", style.faint ? "faint" : "", style.under ? "under" : "", named(front) ? `f${front}` : "", named(back) ? `b${back}` : ""].filter(Boolean);
  const given = [front.startsWith("rgb") ? `color: ${front}` : "", back.startsWith("rgb") ? `background: ${back}` : ""].filter(Boolean);
  if (!names.length && !given.length) return text;
  return h("span", { class: names.join(" ") || null, style: given.join("; ") || null }, text);
}

const named = (colour) => colour !== "" && !colour.startsWith("rgb");
