// Who had which GPU when: one lane a GPU, a colour a model. Drawn on a canvas, the visible lanes only.

import { isDark, ofCanvas } from "./colours.js";
import { laneName, now, shownName, spans, state } from "./state.js";
import { plain, seconds } from "./words.js";

const LANE = 42;
const BAR = 32;
const AXIS = 24;
const STEPS = [5, 10, 30, 60, 120];

const box = document.getElementById("swaps");
const canvas = box.querySelector("canvas");
const tall = box.querySelector(".tall");
const under = document.getElementById("under");
const pick = document.getElementById("window");
const pause = document.getElementById("pause");

let stopped = null;
let pointer = null;
let drawn = [];
let spoken = 0;
let width = 0;
let due = 0;

export function begin() {
  pause.addEventListener("click", toggle);
  box.addEventListener("keydown", (event) => {
    if (event.key !== " ") return;
    event.preventDefault();
    toggle();
  });
  box.addEventListener("pointermove", (event) => {
    const at = canvas.getBoundingClientRect();
    pointer = { x: event.clientX - at.left, y: event.clientY - at.top };
  });
  box.addEventListener("pointerleave", () => { pointer = null; });
  for (const kind of ["pointermove", "pointerleave", "scroll"]) box.addEventListener(kind, soon);
  pick.addEventListener("change", soon);
  // Asked for at each frame, its width would have the page laid out at each frame.
  new ResizeObserver(([entry]) => {
    width = entry.contentRect.width;
    soon();
  }).observe(box);
}

function toggle() {
  stopped = stopped === null ? now() : null;
  pause.setAttribute("aria-pressed", String(stopped !== null));
  soon();
}

export function soon() {
  due = 0;
}

// As often as something moves by a pixel.
export function draw(at) {
  if (!width || at < due) return;
  due = at + Math.min(250, Math.max(30, (Number(pick.value) * 1000) / width));
  const lanes = Object.keys(state.lanes);
  const height = Math.min(lanes.length * LANE + AXIS, 380);
  fit(width, height, lanes.length);
  const until = stopped ?? now();
  const view = { width, left: Math.min(150, width * 0.26), from: until - Number(pick.value), until };
  const paint = colours();
  const pen = canvas.getContext("2d");
  const ratio = devicePixelRatio || 1;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  axis(pen, view, height, paint);
  const first = Math.floor(box.scrollTop / LANE);
  const last = Math.min(lanes.length, Math.ceil((box.scrollTop + height - AXIS) / LANE));
  const rows = new Map();
  for (let row = first; row < last; row += 1) rows.set(lanes[row], row * LANE - box.scrollTop);
  drawn = [];
  pen.save();
  pen.beginPath();
  pen.rect(0, 0, width, height - AXIS);
  pen.clip();
  for (const [id, top] of rows) label(pen, view, laneName(id), top, paint);
  const bars = stack(visible(view, rows), rows);
  for (const bar of bars) draw1(pen, view, bar, paint);
  pen.restore();
  point(bars.length);
}

function fit(width, height, lanes) {
  const ratio = devicePixelRatio || 1;
  tall.style.height = `${Math.max(0, lanes * LANE + AXIS - height)}px`;
  if (canvas.width === Math.round(width * ratio) && canvas.height === Math.round(height * ratio)) return;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
}

// Spans that are over and the seats that are in now, as far as the window shows them.
function visible(view, rows) {
  const found = [];
  for (let index = spans.length - 1; index >= 0 && spans[index].end >= view.from; index -= 1) {
    const one = spans[index];
    if (one.begin <= view.until && one.lanes.some((id) => rows.has(id))) found.push(one);
  }
  for (const seat of Object.values(state.seats)) {
    if (seat.held && seat.since <= view.until && seat.lanes.some((id) => rows.has(id))) found.push({ ...seat, begin: seat.since, end: view.until });
  }
  return found;
}

// Models that are active together on one GPU share its lane's height.
function stack(found, rows) {
  const bars = [];
  const levels = new Map();
  const width = new Map();
  for (const one of found.sort((a, b) => a.begin - b.begin)) {
    for (const id of one.lanes) {
      if (!rows.has(id)) continue;
      const ends = levels.get(id) ?? new Map();
      levels.set(id, ends);
      const mine = ends.get(one.model);
      let level = mine?.level ?? 0;
      if (mine === undefined || mine.end < one.begin - 0.002) {
        const taken = new Set([...ends.values()].filter((other) => other !== mine && other.end > one.begin).map((other) => other.level));
        for (level = 0; taken.has(level); level += 1);
      }
      ends.set(one.model, { level, end: one.end });
      width.set(id, Math.max(width.get(id) ?? 1, level + 1));
      bars.push({ one, id, level, top: rows.get(id) });
    }
  }
  for (const bar of bars) bar.of = width.get(bar.id);
  return bars;
}

function draw1(pen, view, bar, paint) {
  const scale = (view.width - view.left - 8) / (view.until - view.from);
  const x = Math.max(view.left, view.left + (bar.one.begin - view.from) * scale);
  const end = view.left + (bar.one.end - view.from) * scale;
  const wide = Math.max(2, end - x);
  if (end < view.left) return;
  const high = BAR / bar.of;
  const y = bar.top + (LANE - BAR) / 2 + bar.level * high;
  const active = bar.one.state === "active";
  pen.fillStyle = ofCanvas(bar.one.model, paint.dark);
  pen.globalAlpha = active ? 1 : 0.45;
  pen.beginPath();
  pen.roundRect(x, y, wide, high - 1, Math.min(3, wide / 2));
  pen.fill();
  if (!active && wide > 5) stripes(pen, x, y, wide, high - 1, paint);
  pen.globalAlpha = 1;
  if (active && wide > 46 && high > 12) {
    pen.fillStyle = paint.dark ? "#0d1016" : "#ffffff";
    pen.font = `600 11.5px ${paint.font}`;
    pen.fillText(cut(pen, plain(shownName(bar.one.model)), wide - 12), x + 6, y + high / 2 + 3.5);
  }
  drawn.push({ x, y, wide, high, one: bar.one });
}

function stripes(pen, x, y, wide, high, paint) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, wide, high);
  pen.clip();
  pen.strokeStyle = paint.sheet;
  pen.lineWidth = 2;
  pen.beginPath();
  for (let at = x - high; at < x + wide; at += 7) {
    pen.moveTo(at, y + high);
    pen.lineTo(at + high, y);
  }
  pen.stroke();
  pen.restore();
}

function label(pen, view, name, top, paint) {
  pen.fillStyle = paint.text;
  pen.font = `500 12.5px ${paint.font}`;
  pen.fillText(cut(pen, plain(name), view.left - 22), 12, top + LANE / 2 + 4);
  pen.fillStyle = paint.raised;
  pen.fillRect(view.left, top + (LANE - BAR) / 2, view.width - view.left - 8, BAR - 1);
}

function axis(pen, view, height, paint) {
  const span = view.until - view.from;
  const step = STEPS.find((one) => span / one <= Math.max(2, (view.width - view.left) / 90)) ?? 120;
  pen.font = `11.5px ${paint.font}`;
  pen.fillStyle = paint.soft;
  pen.textAlign = "right";
  for (let ago = 0; ago <= span; ago += step) {
    const x = view.width - 8 - (ago / span) * (view.width - view.left - 8);
    pen.fillText(ago ? `-${seconds(ago)}` : "now", Math.max(view.left + 30, x), height - 8);
  }
  pen.textAlign = "left";
}

function point(bars) {
  const hit = pointer && drawn.findLast((bar) =>
    pointer.x >= bar.x - 2 && pointer.x <= bar.x + bar.wide + 2 && pointer.y >= bar.y && pointer.y <= bar.y + bar.high);
  if (hit) {
    const { one } = hit;
    say(`${plain(shownName(one.model))}: ${one.state} for ${seconds(one.end - one.begin)}, from ${seconds(now() - one.begin)} ago`);
    return;
  }
  if (performance.now() - spoken < 1000) return;
  spoken = performance.now();
  const from = now() - Number(pick.value);
  const wakes = spans.filter((one) => one.end >= from && ["waking", "starting"].includes(one.state)).length;
  say(`${wakes} starts and wakes in the last ${pick.selectedOptions[0].text}.`);
  const active = Object.values(state.seats).filter((seat) => seat.state === "active").length;
  box.setAttribute("aria-label", `Timeline of ${Object.keys(state.lanes).length} GPUs: ${wakes} starts and wakes in the last ${pick.selectedOptions[0].text}; ${active} models are active now. ${bars} bars.`);
}

function say(words) {
  if (under.textContent !== words) under.textContent = words;
}

function cut(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let length = text.length;
  while (length > 1 && pen.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
  return `${text.slice(0, length)}…`;
}

let palette = null;

export function forgetColours() {
  palette = null;
  soon();
}

function colours() {
  if (palette) return palette;
  const style = getComputedStyle(box);
  const probe = document.createElement("i");
  box.append(probe);
  const of = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  palette = {
    dark: isDark(), font: style.fontFamily, text: of("--text"), soft: of("--soft"), raised: of("--raised"), sheet: of("--sheet"),
  };
  probe.remove();
  return palette;
}
