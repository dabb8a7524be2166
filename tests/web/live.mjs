// As much of a browser as live.js needs, without one: a stream that says what a step names, and pages that are answered.
// usage: node live.mjs FOLDER_OF_SCRIPTS STEPS: prints the shown connection after each step, as JSON.
// Steps: hello, alive, bye: what the stream says; wait: nothing for so long that the page asks by itself; 200, 429, 500:
// how that is answered from then on.

import { readFile } from "node:fs/promises";

const [, , folder, ...steps] = process.argv;
const SILENCE_MS = 60;
const INTERVAL_MS = 1000; // twice in it a page asks anew
const connection = { dataset: {}, textContent: "" };
const part = { dispatchEvent() {} };
let status = 200;
let streams = [];
globalThis.document = {
  hidden: false,
  body: { dataset: { live: "fleet", intervalS: INTERVAL_MS / 1000 } },
  getElementById: () => connection,
  querySelector: () => null,
  querySelectorAll: () => [part],
  addEventListener() {},
  dispatchEvent() {},
};
globalThis.addEventListener = () => {};
globalThis.location = { href: "http://localhost/" };
let morphed = [];
globalThis.Idiomorph = { morph: (_part, text) => morphed.push(text) };
globalThis.htmx = { process() {} };
globalThis.EventSource = class {
  #heard = {};
  constructor() { streams.push(this); }
  addEventListener(name, act) { this.#heard[name] = act; }
  say(name) { this.#heard[name]({ data: "mark" }); }
  close() { this.closed = true; }
};
globalThis.fetch = async () => ({ status, statusText: "", headers: { get: () => null }, text: async () => `page ${status}` });
const wait = (ms) => new Promise((done) => setTimeout(done, ms));

const source = await readFile(`${folder}/live.js`, "utf8");
const hasty = source.replace(/const SILENCE_MS = \d+/, `const SILENCE_MS = ${SILENCE_MS}`);
const { follow } = await import(`data:text/javascript,${encodeURIComponent(hasty)}`);
follow();
const told = [];
for (const step of steps) {
  if (step === "wait") await wait(SILENCE_MS + INTERVAL_MS / 2 + 140);
  else if (/^\d+$/.test(step)) status = Number(step);
  else streams.at(-1).say(step);
  await wait(5);
  told.push({ state: connection.dataset.state, text: connection.textContent, streams: streams.length, open: !streams.at(-1).closed, morphed });
  morphed = [];
}
console.log(JSON.stringify(told));
process.exit();
