// Local copy of the objects, updated by one watch; listeners are called with the changes at most once per frame.

import * as api from "./api.js";
import { Order } from "./order.js";

const ALWAYS = ["node", "workload", "instance", "event", "priority-class"];
// Kinds with very many objects: watched only while a page shows them.
export const BARE_METAL = ["task", "spare"];
const EVENTS_MOST = 2000;
const DRAWING_SHARE = 0.2;
const PAUSE_MILLISECONDS_MOST = 1000;

const KINDS = [...ALWAYS, ...BARE_METAL];
export const objects = Object.fromEntries(KINDS.map((kind) => [kind, new Map()]));
export const state = { connected: false, drawn: 0 };
// Instances by node name.
export const placed = new Map();

// Sorted lists by kind; events are in order of time.
const orders = Object.fromEntries(KINDS.filter((kind) => kind !== "event").map((kind) => [kind, new Order()]));
const listed = {};
const listeners = new Set();
let changed = new Set();
let touched = new Set();
let drawing = false;
let rested = 0;

export const keyOf = (object) => `${object.meta.namespace ?? ""}/${object.meta.name}`;
export const find = (kind, namespace, name) => objects[kind].get(`${namespace ?? ""}/${name}`);

// Returns the objects of a kind in order; the result must not be changed.
export function all(kind) {
  const values = objects[kind];
  listed[kind] ??= orders[kind] ? orders[kind].keys.map((key) => values.get(key)) : [...values.values()];
  return listed[kind];
}

// Listeners get the changed kinds and the names of the affected nodes; null: possibly all nodes.
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function forget(kinds) {
  for (const kind of kinds) replace(kind, []);
}

function tell(kind) {
  delete listed[kind];
  changed.add(kind);
  if (drawing) return;
  drawing = true;
  // Whatever comes in, most of the time is left for whoever types.
  const pause = rested - performance.now();
  if (pause > 0) setTimeout(() => requestAnimationFrame(show), pause);
  else requestAnimationFrame(show);
}

function show() {
  drawing = false;
  const [kinds, nodes] = [changed, touched];
  [changed, touched] = [new Set(), new Set()];
  const begun = performance.now();
  for (const listener of [...listeners]) listener(kinds, nodes);
  state.drawn += 1;
  const ended = performance.now();
  rested = ended + Math.min(PAUSE_MILLISECONDS_MOST, (ended - begun) * (1 / DRAWING_SHARE - 1));
}

function touch(node) {
  if (node) touched?.add(node);
}

// Updates the index of instances by node.
function house(key, before, after) {
  const [left, entered] = [before?.spec.node, after?.spec.node];
  if (left && left !== entered) placed.get(left)?.delete(key);
  if (entered) {
    if (!placed.has(entered)) placed.set(entered, new Map());
    placed.get(entered).set(key, after);
  }
  touch(left);
  touch(entered);
}

function replace(kind, values) {
  if (kind === "event") values.sort((a, b) => a.spec.last_at - b.spec.last_at);
  const kept = kind === "event" ? values.slice(-EVENTS_MOST) : values;
  objects[kind].clear();
  for (const value of kept) objects[kind].set(keyOf(value), value);
  orders[kind]?.reset([...objects[kind].keys()]);
  if (kind === "instance") {
    placed.clear();
    for (const [key, value] of objects.instance) house(key, undefined, value);
  }
  touched = null;
  tell(kind);
}

function put(value) {
  const [values, key] = [objects[value.kind], keyOf(value)];
  const before = values.get(key);
  if (value.kind === "event") values.delete(key); // the newest stand last
  else if (!before) orders[value.kind].add(key);
  values.set(key, value);
  if (value.kind === "event" && values.size > EVENTS_MOST) values.delete(values.keys().next().value);
  if (value.kind === "instance") house(key, before, value);
  if (value.kind === "node") touch(value.meta.name);
}

function drop(value) {
  const key = keyOf(value);
  const before = objects[value.kind].get(key);
  if (!objects[value.kind].delete(key)) return;
  orders[value.kind]?.remove(key);
  if (value.kind === "instance") { house(key, before, undefined); }
}

async function snapshot(kind, signal) {
  let revision = 0;
  const found = [];
  await api.lines(`/v1/snapshot?${api.query({ kind })}`, (text) => {
    const value = JSON.parse(text);
    if (value.error) throw new api.Problem(0, value.error);
    if (value.kind) found.push(value);
    else if (value.revision !== undefined) revision = value.revision;
  }, { signal });
  replace(kind, found);
  return revision;
}

function take(text) {
  const { error, before, after } = JSON.parse(text);
  if (error) throw new api.Problem(0, error);
  const value = after ?? before;
  if (!value || !objects[value.kind]) return;
  if (after) put(after);
  else drop(before);
  tell(value.kind);
}

// Runs for ever: list, watch, and list again when the watch expires or the connection breaks.
export async function follow(signal, refused, kinds = ALWAYS) {
  const light = (connected) => { if (kinds === ALWAYS) { state.connected = connected; tell("connection"); } };
  let pause = 500;
  while (!signal.aborted) {
    try {
      const revisions = await Promise.all(kinds.map((kind) => snapshot(kind, signal)));
      light(true);
      pause = 500;
      await api.lines(`/v1/watch?${api.query({ kind: kinds.join(","), since: Math.min(...revisions) })}`, take, { signal });
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401 || error.status === 403) { refused(error); return; }
    }
    light(false);
    await new Promise((done) => setTimeout(done, pause * (0.5 + Math.random())));
    pause = Math.min(10000, pause * 2);
  }
}
