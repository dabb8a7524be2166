// The last hour of a host: how its CPU was divided, and what batch VMs got of it.
import { TimeChart, ask, shown } from "./charts.js";

const POINTS = 300;
const percent = (share) => (share === null ? null : share * 100);

/** Draw the charts, and draw them anew when something changed. @param {HTMLElement} place */
export function hostCharts(place) {
  const { host } = place.dataset;
  let drawn = null;
  const floor = () => Number(document.getElementById("batch-floor")?.dataset.floor ?? drawn); // none: the host is gone
  const said = document.getElementById("charts-said");
  const split = new TimeChart(document.getElementById("chart-split"), {
    title: `${host}: CPU divided`, unit: "%", top: 90, stacked: true,
  });
  const batch = new TimeChart(document.getElementById("chart-batch"), { title: `${host}: batch`, unit: "%", top: 5 });
  let nextMs = 0;
  let asked = 0;

  async function read() {
    if (performance.now() < nextMs) return;
    nextMs = performance.now() + 1000;
    asked += 1;
    const question = asked;
    let told;
    try {
      told = await ask(`/hosts/${encodeURIComponent(host)}/history`, { points: POINTS });
    } catch (error) {
      if (question === asked) said.textContent = `No values: ${error.message}`;
      return;
    }
    if (question !== asked) return; // it was asked again meanwhile
    nextMs += 1000 * told.step_s - 1500; // no more than a step can have changed
    const { steps } = told;
    const got = steps.map((step) => step.batch_share).filter((share) => share !== null);
    if (!got.length) {
      for (const chart of [split, batch]) chart.say("No ticks in the last hour.");
      said.textContent = "";
      return;
    }
    const times = steps.map((step) => Date.parse(step.start) / 1000);
    const first = times[steps.findIndex((step) => step.batch_share !== null)];
    const range = [first, Date.parse(told.until) / 1000];
    const line = (name) => steps.map((step) => percent(step[name]));
    split.show(
      ["critical", "batch", "other"].map((label) => ({ label, color: `--${label}`, filled: true, width: 0 })),
      { times, range, values: [line("critical_share"), line("batch_share"), line("other_share")] },
    );
    drawn = floor();
    batch.show(
      [{ label: "batch", color: "--batch" }, { label: "floor", color: "--violated", dash: [6, 4] }],
      { times, range, values: [line("batch_share"), times.map(() => percent(drawn))] },
    );
    const [mean, least, most] = [got.reduce((sum, one) => sum + one, 0) / got.length, Math.min(...got), Math.max(...got)];
    const words = [mean, least, most].map((share) => shown(percent(share), "%"));
    said.textContent = `Batch VMs used ${words[0]} of the host on average, between ${words[1]} and ${words[2]}.`;
  }

  document.addEventListener("changed", read);
  document.addEventListener("renewed", () => {
    if (drawn === null || floor() === drawn) return;
    nextMs = 0; // somebody set another one
    read();
  });
  read();
}
