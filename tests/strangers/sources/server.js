// Counts its answers in a worker thread.
const http = require("http");
const { Worker, isMainThread, parentPort } = require("worker_threads");

if (isMainThread) {
  const token = require("crypto").randomBytes(8).toString("hex");
  const worker = new Worker(__filename);
  const waiting = [];
  worker.on("message", (count) => waiting.shift().end(`${count} ${token}`));
  const server = http.createServer((request, response) => {
    waiting.push(response);
    worker.postMessage("next");
  });
  server.keepAliveTimeout = 600000;
  server.listen(8000, "0.0.0.0");
} else {
  let count = 0;
  parentPort.on("message", () => parentPort.postMessage(++count));
}
