// The stream of what changes. fetch and not EventSource: a key goes into a header.

const SILENT_MS = 16000;
const PAUSES_MS = [300, 1000, 2000, 5000];

let key = "";

export function setKey(given) {
  key = given;
}

export function headers() {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// Calls `take(kind, data)` for each event, for ever; `tell(is, words)` of the connection.
// `needsKey()` returns a promise of somebody having given one.
export async function follow(take, tell, needsKey) {
  for (let tries = 0; ; tries += 1) {
    const began = performance.now();
    try {
      const status = await once(take, tell);
      if (status === 401) {
        tell("wait", "a key is needed");
        await needsKey(Boolean(key));
        tries = -1;
        continue;
      }
    } catch (error) {
      console.debug(error);
    }
    if (performance.now() - began > 10000) tries = 0;
    const pause = PAUSES_MS[Math.min(tries, PAUSES_MS.length - 1)];
    tell("lost", "connection lost, trying again");
    await new Promise((done) => setTimeout(done, pause));
  }
}

async function once(take, tell) {
  const end = new AbortController();
  let timer = setTimeout(() => end.abort(), SILENT_MS);
  try {
    const answer = await fetch("events", { headers: headers(), signal: end.signal, cache: "no-store" });
    if (!answer.ok) {
      if (answer.status !== 401) throw new Error(`${answer.status}: ${await answer.text()}`);
      return 401;
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return answer.status;
      clearTimeout(timer);
      timer = setTimeout(() => end.abort(), SILENT_MS);
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) read(event, take);
      tell("live", "live");
    }
  } finally {
    clearTimeout(timer);
    end.abort();
  }
}

function read(event, take) {
  const [first, second] = event.split("\n", 2);
  take(first.slice("event: ".length), JSON.parse(second.slice("data: ".length)));
}
