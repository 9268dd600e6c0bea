// A shell in an instance, line by line; what draws all over a screen is for `mandor exec --tty`.

import * as api from "../api.js";
import { fill, h } from "../dom.js";
import { t } from "../words.js";

const [STDIN, STDOUT, STDERR, END] = [0, 1, 2, 3];
const TEXT_MOST = 100000;
const UNFINISHED_MOST = 200;
const SIZE = { rows: 24, columns: 120 };

const SEQUENCES = /\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>@-Z\\^_]|[\x00-\x08\x0b\x0c\x0e-\x1a]/g;
const UNFINISHED = /\x1b(?:\[[0-9;?]*[ -/]*|\][^\x07\x1b]*\x1b?|[()])?$/;

// Lines as a terminal would leave them: a return without a new line writes over what stands there.
const settled = (text) => text.replace(/\r+\n/g, "\n").replace(/[^\n]*\r(?!\n|$)/g, "");

export class Shell {
  // `tasks`: of which there may be several to choose from.
  constructor(namespace, name, tasks) {
    Object.assign(this, { namespace, name, socket: null, text: "", rest: "" });
    this.screen = h("pre", { class: "logs", tabindex: "0", "aria-label": t("Shell"), hidden: true });
    this.task = h("select", { "aria-label": t("Task") }, tasks.map((each) => h("option", {}, each)));
    this.line = h("input", { id: "line", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
    this.controls = h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); if (this.send(`${this.line.value}\n`)) this.line.value = ""; } });
    this.element = h("div", {}, this.screen, h("p"), this.controls);
    this.offer();
  }

  offer() {
    fill(this.controls, this.task.options.length > 1 ? this.task : null,
      h("button", { type: "button", onclick: () => this.open() }, t("Open a shell")));
  }

  open() {
    const query = api.query({ command: "sh", namespace: this.namespace, terminal: "true", task: this.task.options.length > 1 ? this.task.value : "", ...SIZE });
    const decoder = new TextDecoder();
    const socket = api.socket(`/v1/instances/${encodeURIComponent(this.name)}/exec?${query}`);
    socket.onmessage = ({ data }) => {
      const frame = new Uint8Array(data);
      if (frame[0] === STDOUT || frame[0] === STDERR) this.write(decoder.decode(frame.subarray(1), { stream: true }));
      if (frame[0] === END) this.end(socket, ending(new TextDecoder().decode(frame.subarray(1))));
    };
    socket.onclose = () => this.end(socket, t("The connection is closed."));
    Object.assign(this, { socket, text: "", rest: "" });
    this.screen.hidden = false;
    this.write("");
    fill(this.controls, h("label", { for: "line" }, t("Input")), this.line, h("button", { class: "first" }, t("Send")),
      h("button", { type: "button", onclick: () => this.send("\x03") }, t("Interrupt")),
      h("button", { type: "button", onclick: () => socket.close() }, t("Close")));
    this.line.focus();
  }

  end(socket, why) {
    if (this.socket !== socket) return;
    this.leave();
    this.write(`\n[${why}]\n`);
    this.offer();
  }

  // False: it is not connected yet.
  send(text) {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(new Uint8Array([STDIN, ...new TextEncoder().encode(text)]));
    return true;
  }

  write(piece) {
    const text = this.rest + piece;
    const [unfinished = ""] = text.match(UNFINISHED) ?? [];
    this.rest = unfinished.length > UNFINISHED_MOST ? "" : unfinished;
    this.text = (this.text + text.slice(0, text.length - unfinished.length).replace(SEQUENCES, "")).slice(-TEXT_MOST);
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      this.screen.textContent = settled(this.text);
      this.screen.scrollTop = this.screen.scrollHeight;
    });
  }

  leave() {
    const { socket } = this;
    this.socket = null;
    socket?.close();
  }
}

function ending(text) {
  const told = JSON.parse(text || "{}");
  if (Number.isInteger(told.code)) return `${t("Exit status")} ${told.code}`;
  return [told.detail ?? told.message ?? t("The connection is closed."), told.hint].filter(Boolean).join("; ");
}
