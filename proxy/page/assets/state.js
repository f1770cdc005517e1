// What the server told, kept up to date; and the spans of the timeline.

const KEPT_S = 620;
const MOST = 20000;

export const state = { lanes: {}, models: {}, seats: {}, acts: [], commands: false, logs: false, title: "", total: {} };

// Spans that are over, in order of their ends.
export let spans = [];
let offset = 0;

// The server's clock now, in seconds.
export function now() {
  return performance.now() / 1000 + offset;
}

export function take(kind, data) {
  const { now: at, spans: past, ...rest } = data;
  if (kind === "page") {
    for (const key of Object.keys(state)) delete state[key];
    Object.assign(state, rest);
    spans = [];
    offset = at - performance.now() / 1000;
  } else {
    merge(state, rest);
    // Slowly, so that nothing jumps where one event was late.
    offset += Math.max(-0.02, Math.min(0.02, at - now()));
  }
  if (past) spans.push(...past);
  const oldest = now() - KEPT_S;
  if (spans.length && (spans.length > MOST || spans[0].end < oldest - 30)) {
    spans = spans.slice(-MOST).filter((one) => one.end >= oldest);
  }
}

// RFC 7396, of own properties alone: a model may be called __proto__.
function merge(target, patch) {
  for (const [key, value] of Object.entries(patch)) {
    const had = Object.hasOwn(target, key) ? target[key] : null;
    if (value === null) delete target[key];
    else if (isObject(value) && isObject(had)) merge(had, value);
    else Object.defineProperty(target, key, { value, writable: true, enumerable: true, configurable: true });
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function shownName(full) {
  return state.models[full]?.name ?? full;
}

export function laneName(id) {
  const lane = state.lanes[id];
  if (!lane) return id;
  return lane.node ? `${lane.node} ${lane.name}` : lane.name;
}
