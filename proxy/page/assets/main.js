// The page: what comes from the server goes into the state, and the state is drawn.

import * as events from "./events.js";
import { isDark } from "./colours.js";
import * as gpus from "./gpus.js";
import * as logs from "./logs.js";
import * as seats from "./seats.js";
import * as state from "./state.js";
import * as timeline from "./timeline.js";

const link = document.getElementById("link");
const theme = document.getElementById("theme");
const ask = document.getElementById("ask-key");
let due = true;
// Nothing moves under a pointer that is down: it would come up beside what it was pressed on, which
// is no click. A press that never ends is forgotten.
const PRESS_MS = 5000;
let pressed = 0;

function tell(is, words) {
  if (link.dataset.is === is && link.textContent === words) return;
  link.dataset.is = is;
  link.textContent = words;
}

function needsKey(wrong) {
  const field = document.getElementById("key");
  document.getElementById("key-title").textContent = wrong ? "That key is not known here" : "Which key?";
  ask.showModal();
  return new Promise((done) => {
    ask.addEventListener("close", () => {
      events.setKey(field.value);
      field.value = "";
      done();
    }, { once: true });
  });
}

function themed() {
  theme.textContent = isDark() ? "Light" : "Dark";
  timeline.forgetColours();
}

theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  themed();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);

// After another button a menu may open, and take the release.
addEventListener("pointerdown", ({ button }) => { if (button === 0) pressed = performance.now(); });
for (const over of ["pointerup", "pointercancel"]) addEventListener(over, () => { pressed = 0; });

function frame(at) {
  if (due && (!pressed || at > pressed + PRESS_MS)) {
    due = false;
    seats.tiles();
    gpus.draw();
    seats.draw();
  }
  timeline.draw(at);
  requestAnimationFrame(frame);
}

themed();
seats.begin();
logs.begin();
timeline.begin();
requestAnimationFrame(frame);
events.follow((kind, data) => {
  state.take(kind, data);
  due = true;
}, tell, needsKey);
