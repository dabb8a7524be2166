// The charts of a what-if: weights as recorded, and as the policy would have set them.
import { TimeChart } from "./charts.js";

const COLOURS = ["--critical", "--batch", "--other", "--met", "--violated", "--muted"];

function draw() {
  for (const place of document.querySelectorAll("[data-weights]:empty")) {
    const { at, vms, sla, application, interval_s: intervalS } = JSON.parse(place.dataset.weights);
    const times = at.map((moment) => Date.parse(moment) / 1000);
    const lines = vms.flatMap(({ vm }, number) => {
      const color = COLOURS[number % COLOURS.length];
      return [
        { label: `${vm}, recorded`, color, stepped: true },
        { label: `${vm}, estimated`, color, stepped: true, dash: [6, 4] },
      ];
    });
    new TimeChart(place, { title: `Weights of ${application}, recorded and estimated` }).show(lines, {
      times,
      range: [times[0] - intervalS, times.at(-1)],
      spans: times.flatMap((time, number) => (sla[number] === "violated" ? [[time - intervalS, time]] : [])),
      values: vms.flatMap(({ recorded, replayed }) => [recorded, replayed]),
    });
  }
}

document.addEventListener("htmx:afterSwap", draw);
draw();
