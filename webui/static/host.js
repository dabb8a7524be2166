// The page of a host: the map of pCPUs walked with arrow keys, and the charts of the last hour.
import { hostCharts } from "./host_charts.js";

const TOWARDS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** All pCPUs of the map in order. @returns {HTMLButtonElement[]} */
const cells = () => [...document.querySelectorAll("#cpu-map .pcpu")];

/** Only one pCPU is reached with Tab, so that a map of 256 can be passed. @param {Element} [chosen] */
function single(chosen) {
  const all = cells();
  const kept = chosen ?? all.find((cell) => cell === document.activeElement) ?? all[0];
  for (const cell of all) cell.tabIndex = cell === kept ? 0 : -1;
}

/** The pCPU in the same column of the row above or below, else undefined. */
function beside(all, from, step) {
  const { left, top } = from.getBoundingClientRect();
  const rows = all
    .map((cell) => ({ cell, box: cell.getBoundingClientRect() }))
    .filter(({ box }) => (step > 0 ? box.top > top + 2 : box.top < top - 2));
  if (!rows.length) return undefined;
  const nearest = Math.min(...rows.map(({ box }) => Math.abs(box.top - top)));
  const row = rows.filter(({ box }) => Math.abs(Math.abs(box.top - top) - nearest) < 2);
  return row.reduce((best, one) => (Math.abs(one.box.left - left) < Math.abs(best.box.left - left) ? one : best)).cell;
}

document.addEventListener("keydown", (event) => {
  const from = event.target.closest?.(".pcpu");
  if (!from || event.ctrlKey || event.altKey || event.metaKey) return;
  const all = cells();
  const at = all.indexOf(from);
  let to;
  if (event.key === "Home") to = all[0];
  else if (event.key === "End") to = all.at(-1);
  else if (event.key === "ArrowUp" || event.key === "ArrowDown") to = beside(all, from, TOWARDS[event.key]);
  else if (event.key in TOWARDS) to = all[at + TOWARDS[event.key]];
  else return;
  event.preventDefault();
  to?.focus();
});

function tell(event) {
  const cell = event.target.closest?.(".pcpu");
  if (!cell) return;
  document.getElementById("pcpu-told").textContent = cell.getAttribute("aria-label");
  if (event.type === "focusin") single(cell);
}
document.addEventListener("focusin", tell);
document.addEventListener("mouseover", tell);
document.addEventListener("renewed", () => single());

single();
hostCharts(document.getElementById("host-charts"));
