// The table of models: a row for each seat. Only cells that changed are touched.

import { act, buttons } from "./acts.js";
import { paint } from "./colours.js";
import { make } from "./gpus.js";
import { laneName, shownName, state } from "./state.js";
import { bytes, count, plain, seconds } from "./words.js";

const body = document.getElementById("rows");
const filter = document.getElementById("filter");
const shown = document.getElementById("shown");
const none = document.getElementById("none");
const rows = new Map();

const KINDS = { active: "active", failed: "failed", parked: "parked", waiting: "parked" };
const LABELS = ["", "", "Memory", "Next wake", "Requests", "A second", "Wait p50 · p99", "Wakes", ""];

export function begin() {
  filter.addEventListener("input", draw);
  body.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) act(button.dataset.act, state.seats[button.closest("tr").dataset.uid]);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select, dialog")) return;
    event.preventDefault();
    filter.focus();
  });
}

export function draw() {
  const wanted = filter.value.trim().toLowerCase();
  // Without anything to do, there is no column for it.
  body.parentElement.classList.toggle("shows", !state.acts.length && !state.commands && !state.logs);
  let visible = 0;
  for (const [uid, row] of rows) {
    if (uid in state.seats) continue;
    row.element.remove();
    rows.delete(uid);
  }
  const order = Object.keys(state.seats).sort(byName);
  let before = null;
  for (const uid of order) {
    const row = rows.get(uid) ?? fresh(uid);
    place(row.element, before);
    before = row.element;
    const seat = state.seats[uid];
    const matches = !wanted || `${shownName(seat.model)} ${stateOf(seat)} ${seat.node}`.toLowerCase().includes(wanted);
    if (row.element.hidden === matches) row.element.hidden = !matches;
    if (!matches) continue;
    visible += 1;
    fill(row, seat);
  }
  told(visible, order.length);
}

function byName(left, right) {
  const a = state.seats[left];
  const b = state.seats[right];
  return compare(shownName(a.model), shownName(b.model)) || compare(a.node, b.node) || compare(a.name, b.name);
}

function compare(a, b) {
  return a < b ? -1 : Number(a > b);
}

function place(element, before) {
  const there = before ? before.nextSibling : body.firstChild;
  if (there !== element) body.insertBefore(element, there);
}

function told(visible, all) {
  const words = visible === all ? `${all}` : `${visible} of ${all}`;
  if (shown.textContent !== words) shown.textContent = words;
  none.hidden = visible > 0;
  if (!visible) none.textContent = all ? "No model is called so, or in this state." : "There are no models yet.";
}

function fresh(uid) {
  const element = make("tr", "");
  element.setAttribute("role", "row");
  element.dataset.uid = uid;
  const cells = LABELS.map((label, index) => {
    const cell = make("td", index > 1 && index < 8 ? "n" : "");
    cell.setAttribute("role", "cell");
    if (label) cell.dataset.label = label;
    element.append(cell);
    return cell;
  });
  cells[8].className = "acts";
  const row = { element, cells, told: [] };
  rows.set(uid, row);
  return row;
}

function stateOf(seat) {
  return seat.tier ? `${seat.state} in ${seat.tier === "ram" ? "RAM" : seat.tier === "nvme" ? "NVMe" : "object store"}` : seat.state;
}

function fill(row, seat) {
  const model = state.models[seat.model] ?? {};
  set(row, 0, `${shownName(seat.model)}\n${seat.lanes}\n${seat.pinned}\n${seat.weight}`, () => named(seat));
  set(row, 1, `${stateOf(seat)}\n${seat.why}\n${seat.connected}`, () => stated(seat));
  text(row, 2, seat.bytes ? bytes(seat.bytes) : "–");
  text(row, 3, seat.state === "active" ? "awake" : seat.wake === undefined ? "not known" : `about ${seconds(seat.wake)}`);
  set(row, 4, `${seat.in_flight} ${seat.waiting} ${seat.waiting ? model.left : ""}`, () => asked(seat, model.left));
  text(row, 5, count(model.rate ?? 0));
  text(row, 6, model.p50 === undefined ? "–" : `${seconds(model.p50)} · ${seconds(model.p99)}`);
  text(row, 7, String(seat.wakes));
  set(row, 8, `${state.acts} ${state.commands} ${state.logs} ${seat.state} ${seat.pinned}`, () => offered(row, seat));
}

function set(row, index, words, make_) {
  if (row.told[index] === words) return;
  row.told[index] = words;
  row.cells[index].replaceChildren(...make_());
}

function text(row, index, words) {
  set(row, index, words, () => [words]);
}

function named(seat) {
  const dot = make("i", "swatch");
  paint(dot, seat.model);
  const name = make("div", "name", dot, make("span", "", plain(shownName(seat.model))));
  if (seat.pinned) name.append(make("em", "pin", "pinned"));
  const turns = seat.turn === "always" ? [`takes turns, weight ${seat.weight}`] : [];
  const where = [seat.lanes.map(laneName).join(", "), ...turns].join(" · ");
  return [name, make("div", "where", plain(where))];
}

function stated(seat) {
  const kind = KINDS[seat.state] ?? "moving";
  const word = make("span", "state", plain(stateOf(seat)));
  word.dataset.kind = kind;
  const said = seat.why === stateOf(seat) ? "" : seat.why;
  const why = seat.connected ? said : `its node does not answer; before that: ${seat.why}`;
  return [word, make("div", "why", plain(why))];
}

function asked(seat, left) {
  const parts = [`${seat.in_flight} now`];
  if (seat.waiting) parts.push(", ", make("span", "queue", `${seat.waiting} waiting`));
  if (seat.waiting && left !== undefined) parts.push(make("div", "where", left > 0 ? `about ${seconds(left)} to go` : "any moment"));
  return parts;
}

// The button that has the focus keeps it, as one of the same kind.
function offered(row, seat) {
  const focused = row.cells[8].contains(document.activeElement) ? document.activeElement.dataset.act : "";
  const offers = buttons(seat);
  if (focused) {
    const next = offers.find((one) => one.dataset.act === focused) ?? offers.find((one) => !one.disabled);
    queueMicrotask(() => next?.focus());
  }
  return offers;
}

export function tiles() {
  const all = Object.values(state.seats);
  const sum = (what) => all.reduce((total, seat) => total + what(seat), 0);
  const write = (id, words) => {
    const element = document.getElementById(id);
    if (element.textContent !== words) element.textContent = words;
  };
  const waiting = Object.values(state.models).reduce((total, model) => total + model.waiting, 0);
  write("n-active", String(sum((seat) => Number(seat.held))));
  write("n-parked", String(sum((seat) => Number(seat.tier !== ""))));
  write("n-flight", String(sum((seat) => seat.in_flight)));
  write("n-waiting", String(waiting));
  write("n-rate", count(state.total.rate ?? 0));
  write("n-wait", state.total.p50 === undefined ? "–" : `${seconds(state.total.p50)} · ${seconds(state.total.p99)}`);
  write("title", plain(state.title));
}

