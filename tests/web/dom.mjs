// As much of a browser as the scripts of charts need, without one: elements that remember what they were told.
// usage: node dom.mjs FOLDER_OF_SCRIPTS QUERY STEPS: prints what the chart of response times shows after each step, as JSON.

import { readFile } from "node:fs/promises";

const [, , folder, query, ...steps] = process.argv;
const MS = 40; // how long an answer takes
const listeners = {};
const elements = {};
const element = (id) =>
  (elements[id] ??= {
    id, dataset: {}, textContent: "", clientWidth: 500, setAttribute() {}, addEventListener() {}, append() {}, closest: () => null,
    replaceChildren(...words) { this.words = words.map((one) => one.textContent).join(" "); },
  });
globalThis.document = {
  documentElement: element("root"),
  createElement: (name) => ({ ...element(name) }),
  getElementById: element,
  querySelectorAll: () => [],
  addEventListener: (name, act) => (listeners[name] ??= []).push(act),
};
globalThis.addEventListener = () => {};
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "" });
globalThis.ResizeObserver = class { observe() {} };
globalThis.location = { search: query, pathname: "/applications/shop" };
let drawn = 0;
globalThis.uPlot = class {
  constructor(_config, _columns, place) { if (place.id === "chart-times") drawn += 1; }
  setData() { drawn += 1; }
  destroy() {}
};
uPlot.paths = { stepped: () => undefined };

let empty = false;
let hangs = false;
let vms = 1;
const at = (second) => new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString();
const step = { start: at(0), count: 5, percentile_ms: 5, p50_ms: 1, p95_ms: 5, p99_ms: 6, rate_rps: 1, judged: 10, violated: 3 };
const starts = [...Array(300).keys()].map((second) => at(second));
function answer(url) {
  if (url.includes("/decisions/")) return { items: [] };
  if (!url.includes("/tiers-history")) return { sla: { percentile: 95, response_time_ms: 10 }, violations: [], steps: empty ? [] : [step] };
  const lines = [...Array(vms).keys()].map((number) => ({ vm: `web-${number}`, weight: starts.map(() => 1 + number) }));
  return { starts, tiers: [{ tier: "web", pcpus: starts.map(() => 1), vms: lines }] };
}
globalThis.fetch = async (url, { signal }) => {
  if (hangs) await new Promise((_done, fail) => (signal.onabort = () => fail(signal.reason)));
  await wait(MS);
  return { ok: true, json: async () => answer(url) };
};
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const failed = [];
process.on("unhandledRejection", (error) => failed.push(error.message));

element("charts").dataset = { application: "shop", first: at(0) };
const source = async (name) => (await readFile(`${folder}/${name}`, "utf8"));
const module = (text) => `data:text/javascript,${encodeURIComponent(text)}`;
const charts = module((await source("charts.js")).replace(/LONGEST_ANSWER_MS = \d+/, `LONGEST_ANSWER_MS = ${2 * MS}`));
const changed = () => listeners.changed.forEach((act) => act());
if (steps[0] === "many") vms = 500;
await import(module((await source("application.js")).replace('"./charts.js"', JSON.stringify(charts))));
const told = [];
for (const name of steps) {
  empty = name === "empty";
  hangs = name === "hang";
  if (name === "often") for (let time = 0; time < 10; time += 1) { await wait(0.75 * MS); changed(); }
  else {
    await wait(2 * MS);
    changed();
    await wait(2 * MS + (hangs ? 2 * MS : 0));
  }
  told.push({ drawn, words: element("chart-times").words, range: element("in-range").textContent, failed });
}
console.log(JSON.stringify(told));
