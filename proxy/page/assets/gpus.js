// Each GPU, or group of GPUs, with what lies in its memory.

import { paint } from "./colours.js";
import { laneName, shownName, state } from "./state.js";
import { bytes, plain } from "./words.js";

const list = document.getElementById("gpus");
const cards = new Map();

export function draw() {
  const inside = new Map(Object.keys(state.lanes).map((id) => [id, []]));
  for (const seat of Object.values(state.seats)) {
    if (seat.held) for (const id of seat.lanes) inside.get(id)?.push(seat);
  }
  for (const [id, card] of cards) {
    if (inside.has(id)) continue;
    card.remove();
    cards.delete(id);
  }
  for (const [id, seats] of inside) {
    if (!cards.has(id)) cards.set(id, list.appendChild(document.createElement("li")));
    drawOne(cards.get(id), id, state.lanes[id], seats);
  }
}

function drawOne(card, id, lane, seats) {
  const told = JSON.stringify([lane, seats.map((seat) => [seat.model, seat.bytes, seat.state, seat.lanes.length, shownName(seat.model)])]);
  if (card.dataset.told === told) return;
  card.dataset.told = told;
  // A model on several GPUs is taken to have the same of each.
  const parts = seats.map((seat) => ({ seat, size: seat.bytes / seat.lanes.length }));
  const used = parts.reduce((sum, part) => sum + part.size, lane.others);
  const of = make("div", "of", make("b", "", plain(laneName(id))), make("span", "", plain(lane.product)));
  if (lane.memory) of.append(make("span", "much", `${bytes(used)} of ${bytes(lane.memory)}`));
  const kinds = [...parts.map((part) => entry(part.seat, part.size))];
  if (lane.others) kinds.push(make("span", "", swatch("others"), `others ${bytes(lane.others)}`));
  if (!kinds.length) kinds.push(make("span", "", lane.memory ? "free" : "nothing active that you may see"));
  card.replaceChildren(of, meter(lane, parts, used), make("div", "in", ...kinds));
}

function entry(seat, size) {
  const dot = swatch("");
  paint(dot, seat.model);
  const known = size > 0 ? ` ${bytes(size)}` : "";
  const doing = seat.state === "active" ? "" : ` (${seat.state})`;
  return make("span", "", dot, `${plain(shownName(seat.model))}${known}${doing}`);
}

function meter(lane, parts, used) {
  const bar = make("div", "meter");
  bar.setAttribute("aria-hidden", "true");
  for (const { seat, size } of parts) {
    const piece = bar.appendChild(make("i", ""));
    paint(piece, seat.model);
    piece.style.flexGrow = lane.memory ? Math.max(size, lane.memory / 200) : 1;
  }
  if (lane.others) bar.appendChild(make("i", "others")).style.flexGrow = lane.others;
  if (lane.memory > used) bar.appendChild(make("i", "")).style.flexGrow = lane.memory - used;
  return bar;
}

function swatch(kind) {
  return make("i", `swatch ${kind}`.trim());
}

// Text becomes text, whatever it says.
export function make(tag, kind, ...children) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  element.append(...children);
  return element;
}
