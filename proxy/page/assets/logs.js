// What a model writes, as it comes. Its own words: text, whatever they say.

import { headers } from "./events.js";
import { shownName } from "./state.js";
import { plain } from "./words.js";

const MOST = 400000;
// Colours and cursor movements of terminals.
const CODES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-_])/g;
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

const dialog = document.getElementById("log");
const pre = document.getElementById("log-text");
const follow = document.getElementById("log-follow");
let end = null;
let text = "";
let due = false;

export function begin() {
  document.getElementById("log-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => end?.abort());
  follow.addEventListener("change", show);
}

export async function open(model) {
  end?.abort();
  const mine = end = new AbortController();
  document.getElementById("log-title").textContent = `Log of ${plain(shownName(model))}`;
  text = "";
  show();
  if (!dialog.open) dialog.showModal();
  try {
    const path = `../logs/stream/${encodeURIComponent(model)}`;
    const answer = await fetch(path, { headers: headers(), signal: mine.signal, cache: "no-store" });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      add(value);
    }
    add("\n(the server ended this log)\n");
  } catch (error) {
    if (!mine.signal.aborted) add(`\n(the log broke off: ${error.message})\n`);
  }
}

function add(piece) {
  text += piece;
  if (text.length > 2 * MOST) text = text.slice(-MOST);
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    show();
  });
}

function show() {
  if (!follow.checked) return;
  const cut = text.length > MOST ? text.slice(text.indexOf("\n", text.length - MOST) + 1) : text;
  pre.textContent = cut.replace(/\r\n/g, "\n").replace(CODES, "").replace(UNSEEN, "\ufffd");
  pre.scrollTop = pre.scrollHeight;
}
