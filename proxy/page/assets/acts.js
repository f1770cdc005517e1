// What people do with a model: park, wake, pin, unload, read its log.

import { headers } from "./events.js";
import { make } from "./gpus.js";
import * as logs from "./logs.js";
import { shownName, state } from "./state.js";
import { plain } from "./words.js";

const sure = document.getElementById("sure");
const yes = document.getElementById("sure-yes");
const said = document.getElementById("said");
let hide = 0;

const QUESTIONS = {
  park: (seat) => [
    `Park ${plain(seat.model)}?`,
    `It leaves GPU memory once ${seat.in_flight === 1 ? "1 request is" : `${seat.in_flight} requests are`} answered. Its state is kept; the next request wakes it.`,
    "Park",
  ],
  unload: (seat) => [
    `Unload ${plain(seat.model)}?`,
    "Its processes end, and what they hold in memory is lost. The next request starts it from the beginning.",
    "Unload",
  ],
};
const COMMANDS = {
  park: "kubectl kyb park",
  wake: "kubectl kyb wake",
  pin: "kubectl kyb pin",
  unload: "kubectl delete pod",
  log: "kubectl logs -f",
};
const MEANS = {
  pin: " Its newest artifact is kept, with a copy in the object store; no GPU memory is.",
  unload: " Its processes end, and what they hold in memory is lost.",
};
// What Kubernetes calls things. A node may tell another name, which a shell would obey.
const NAME = /^[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?$/;
const DOING = { park: "parking", wake: "waking", pin: "pinning", unpin: "unpinning", unload: "ending" };
const DONE = { park: "is parked", wake: "is awake", pin: "stays in GPU memory", unpin: "may leave GPU memory", unload: "has ended" };

// What does it in a cluster, for who is known there by rights of their own; empty if nothing may.
export function commandOf(name, seat) {
  const named = NAME.test(seat.pod) && NAME.test(seat.namespace) && Object.hasOwn(COMMANDS, name);
  return named ? `${COMMANDS[name]} ${seat.pod} -n ${seat.namespace}` : "";
}

export function buttons(seat) {
  if (state.commands) return shown(seat);
  const offers = [];
  const can = (act) => state.acts.includes(act);
  const runs = seat.held || seat.tier !== "";
  if (can("park") && seat.held) offers.push(button("park", "Park", seat, seat.pinned));
  else if (can("wake")) offers.push(button("wake", "Wake", seat));
  if (can("pin")) {
    const pin = button(seat.pinned ? "unpin" : "pin", seat.pinned ? "Unpin" : "Pin", seat);
    offers.push(pin);
  }
  if (can("unload")) offers.push(button("unload", "Unload", seat, !runs));
  if (state.logs) offers.push(button("log", "Log", seat));
  return offers;
}

function shown(seat) {
  const one = seat.held ? button("park", "Park", seat) : button("wake", "Wake", seat);
  if (!commandOf("park", seat)) return [];
  return [one, button("pin", "Pin", seat), button("unload", "Unload", seat), button("log", "Log", seat)];
}

function button(name, words, seat, off = false) {
  const one = make("button", "", words);
  one.type = "button";
  one.dataset.act = name;
  one.disabled = off;
  one.setAttribute("aria-label", `${words} ${plain(shownName(seat.model))}`);
  return one;
}

export async function act(name, seat) {
  if (!seat) return;
  if (state.commands) {
    await show(name, seat);
    return;
  }
  if (name === "log") {
    logs.open(seat.model);
    return;
  }
  if (QUESTIONS[name] && !(await isSure(QUESTIONS[name](seat)))) return;
  say(`${plain(seat.model)}: ${DOING[name]} …`);
  try {
    const path = `../api/models/${name}/${encodeURIComponent(seat.model)}`;
    const answer = await fetch(path, { method: "POST", headers: headers() });
    if (answer.ok) say(`${plain(seat.model)} ${DONE[name]}.`);
    else say(`${plain(seat.model)}: ${await refusal(answer)}`);
  } catch (error) {
    say(`${plain(seat.model)}: the server does not answer (${error.message}).`);
  }
}

async function refusal(answer) {
  const text = await answer.text();
  try {
    const { error } = JSON.parse(text);
    return plain(error.message ?? error);
  } catch {
    return `${answer.status} ${plain(text.slice(0, 300))}`;
  }
}

async function show(name, seat) {
  const words = commandOf(name, seat);
  const text = `This page may do nothing in a cluster. Run this, with rights of your own.${MEANS[name] ?? ""}`;
  const title = `${name[0].toUpperCase()}${name.slice(1)} ${plain(shownName(seat.model))}?`;
  if (!(await isSure([title, text, "Copy"], words))) return;
  try {
    await navigator.clipboard.writeText(words);
    say("The command is copied.");
  } catch {
    say("The browser does not let the page copy: mark the command, and copy it.");
  }
}

function isSure([title, text, word], command = "") {
  document.getElementById("sure-command").textContent = command;
  document.getElementById("sure-title").textContent = title;
  document.getElementById("sure-text").textContent = text;
  yes.textContent = word;
  sure.returnValue = "no";
  sure.showModal();
  return new Promise((done) => {
    sure.addEventListener("close", () => done(sure.returnValue === "yes"), { once: true });
  });
}

function say(words) {
  said.textContent = words;
  said.hidden = false;
  clearTimeout(hide);
  hide = setTimeout(() => { said.hidden = true; }, 8000);
}
