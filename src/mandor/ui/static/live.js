// A copy of what the panel shows, kept by one watch; whoever draws is told what changed, once a frame at most.

import * as api from "./api.js";

const ALWAYS = ["node", "workload", "instance", "event", "priority-class"];
// There may be very many of these: only the pages that show them have them followed.
export const BARE_METAL = ["task", "spare"];
const EVENTS_MOST = 2000;

export const objects = Object.fromEntries([...ALWAYS, ...BARE_METAL].map((kind) => [kind, new Map()]));
export const state = { connected: false };

const listeners = new Set();
let changed = new Set();
let drawing = false;

export const keyOf = (object) => `${object.meta.namespace ?? ""}/${object.meta.name}`;
export const all = (kind) => [...objects[kind].values()];
export const find = (kind, namespace, name) => objects[kind].get(`${namespace ?? ""}/${name}`);

export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function forget(kinds) {
  for (const kind of kinds) objects[kind].clear();
}

function tell(kind) {
  changed.add(kind);
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const kinds = changed;
    changed = new Set();
    for (const listener of [...listeners]) listener(kinds);
  });
}

function trim() {
  const events = objects.event;
  while (events.size > EVENTS_MOST) events.delete(events.keys().next().value);
}

async function snapshot(kind, signal) {
  let revision = 0;
  const found = new Map();
  await api.lines(`/v1/snapshot?${api.query({ kind })}`, (text) => {
    const value = JSON.parse(text);
    if (value.error) throw new api.Problem(0, value.error);
    if (value.kind) found.set(keyOf(value), value);
    else if (value.revision !== undefined) revision = value.revision;
  }, { signal });
  objects[kind].clear();
  for (const [key, value] of found) objects[kind].set(key, value);
  tell(kind);
  return revision;
}

function take(text) {
  const { error, before, after, revision } = JSON.parse(text);
  if (error) throw new api.Problem(0, error);
  const value = after ?? before;
  if (value && objects[value.kind]) {
    if (after) {
      if (after.kind === "event") objects.event.delete(keyOf(after)); // the newest stand last
      objects[after.kind].set(keyOf(after), after);
      if (after.kind === "event") trim();
    } else objects[before.kind].delete(keyOf(before));
    tell(value.kind);
  }
  return revision;
}

// For ever: list, follow, and list again when the watch fell behind or the server went away.
export async function follow(signal, refused, kinds = ALWAYS) {
  const light = (connected) => { if (kinds === ALWAYS) { state.connected = connected; tell("connection"); } };
  let pause = 500;
  while (!signal.aborted) {
    try {
      const revisions = [];
      for (const kind of kinds) revisions.push(await snapshot(kind, signal));
      trim();
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
