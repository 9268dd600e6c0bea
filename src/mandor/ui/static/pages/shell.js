// Shell page: a terminal with a shell in an instance.

import * as api from "../api.js";
import { fill, h } from "../dom.js";
import { Terminal } from "../terminal.js";
import { t } from "../words.js";

const [STDIN, STDOUT, STDERR, END, RESIZE] = [0, 1, 2, 3, 4];
// Starts bash if it exists, otherwise sh.
const COMMAND = ["sh", "-c", "export TERM=xterm-256color; if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh"];
const UNSENT_MOST = 10000;

export class Shell {
  // `tasks`: of which there may be several to choose from.
  constructor(namespace, name, tasks) {
    Object.assign(this, { namespace, name, socket: null, terminal: null, unsent: "" });
    this.place = h("div");
    this.task = h("select", { "aria-label": t("Task") }, tasks.map((each) => h("option", {}, each)));
    this.controls = h("p", { class: "row" });
    this.element = h("div", {}, this.place, this.controls);
    this.offer();
  }

  offer() {
    fill(this.controls, this.task.options.length > 1 ? this.task : null,
      h("button", { type: "button", onclick: () => this.open() }, t("Open a shell")));
  }

  open() {
    this.terminal?.leave();
    this.terminal = new Terminal((text) => this.send(text), (size) => this.frame(RESIZE, JSON.stringify(size)));
    fill(this.place, this.terminal.element);
    this.terminal.fit();
    const { rows, columns } = this.terminal.screen;
    const query = api.query({ namespace: this.namespace, terminal: "true", stdin: "true", task: this.task.options.length > 1 ? this.task.value : "", rows, columns });
    for (const word of COMMAND) query.append("command", word);
    const decoder = new TextDecoder();
    const socket = api.socket(`/v1/instances/${encodeURIComponent(this.name)}/exec?${query}`);
    socket.onopen = () => { const typed = this.unsent; this.unsent = ""; this.send(typed); };
    socket.onmessage = ({ data }) => {
      const frame = new Uint8Array(data);
      if (frame[0] === STDOUT || frame[0] === STDERR) this.terminal.write(decoder.decode(frame.subarray(1), { stream: true }));
      if (frame[0] === END) this.end(socket, ending(new TextDecoder().decode(frame.subarray(1))));
    };
    socket.onclose = () => this.end(socket, t("The connection is closed."));
    Object.assign(this, { socket, unsent: "" });
    fill(this.controls, h("button", { type: "button", onclick: () => socket.close() }, t("Close")),
      h("span", { class: "soft", id: "way-out" }, t("All keys are sent to the program; press Shift+Tab to leave.")));
    this.terminal.field.focus({ preventScroll: true });
  }

  end(socket, why) {
    if (this.socket !== socket) return;
    this.socket = null;
    socket.close();
    this.terminal.write(`\x1b[?1049l\x1b[?25l\x1b[0m\r\n[${why}]\r\n`);
    const typing = document.activeElement === this.terminal.field;
    this.terminal.field.disabled = true;
    this.offer();
    if (typing) this.controls.querySelector("button").focus();
  }

  // What is typed before it is connected is sent then.
  send(text) {
    if (!text || !this.socket) return;
    if (this.socket.readyState === WebSocket.CONNECTING) this.unsent = (this.unsent + text).slice(0, UNSENT_MOST);
    else this.frame(STDIN, text);
  }

  frame(channel, text) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(new Uint8Array([channel, ...new TextEncoder().encode(text)]));
  }

  leave() {
    const { socket } = this;
    this.socket = null;
    socket?.close();
    this.terminal?.leave();
  }
}

function ending(text) {
  const last = JSON.parse(text || "{}");
  if (Number.isInteger(last.code)) return `${t("Exit status")} ${last.code}`;
  return [last.detail ?? last.message ?? t("The connection is closed."), last.hint].filter(Boolean).join("; ");
}
