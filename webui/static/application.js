// The charts of an application: response times, rate, CPU and weights of its tiers, over the range that the URL names.
import { TimeChart, ask, shown } from "./charts.js";

const COLORS = ["--critical", "--batch", "--other", "--met", "--violated", "--muted"];
const DASHES = [undefined, [6, 3], [2, 3]];
const DEFAULT_RANGE = "1h";
const UNITS_S = { min: 60, h: 3600, d: 86400 };
const STORIES = 200;
const LEAST_S = 60;

const seconds = (moment) => Date.parse(moment) / 1000;
const moment = (time) => new Date(time * 1000).toISOString();

/** What the URL asks for: a fixed range, or one that ends now. */
function range() {
  const query = new URLSearchParams(location.search);
  const given = { since: seconds(query.get("since")), until: seconds(query.get("until")) };
  if (Number.isFinite(given.until - given.since)) return given; // else one of them is missing, or is no time
  const [, count, unit] = /^(\d+)(min|h|d)$/.exec(query.get("range") ?? DEFAULT_RANGE) ?? [null, 1, "h"];
  const now = Date.now() / 1000;
  // From the first response time on: of the time before there is nothing to show.
  const first = seconds(document.getElementById("charts").dataset.first) || 0;
  return { since: Math.max(now - count * UNITS_S[unit], Math.min(first, now - LEAST_S)), until: now, live: true };
}

class Application {
  #name;
  #charts;
  #asking = null;

  /** @param {HTMLElement} place */
  constructor(place) {
    this.#name = place.dataset.application;
    const chart = (id, options) =>
      new TimeChart(document.getElementById(id), { zoom: (since, until) => this.#zoom(since, until), ...options });
    this.#charts = {
      times: chart("chart-times", { title: `${this.#name} response time`, unit: "ms" }),
      rate: chart("chart-rate", { title: `${this.#name} rate`, unit: "req/s" }),
      cpu: chart("chart-cpu", { title: `${this.#name} CPU`, unit: "pCPU" }),
      weights: chart("chart-weights", { title: `${this.#name} weights`, logarithmic: true }),
    };
    // While an answer is awaited it is not asked for anew: one that takes longer than changes are apart would never be shown.
    document.addEventListener("changed", () => this.#asking === null && range().live && this.#show());
    addEventListener("popstate", () => this.#show());
    for (const link of document.querySelectorAll("[data-range]")) {
      link.addEventListener("click", (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        this.#go(new URL(link.href).search);
      });
    }
    this.#show();
  }

  #zoom(since, until) {
    this.#go(`?${new URLSearchParams({ since: moment(since), until: moment(until) })}`);
  }

  #go(search) {
    history.pushState(null, "", location.pathname + search);
    this.#show();
  }

  async #show() {
    const wanted = range();
    this.#links(wanted);
    this.#asking?.abort();
    const asking = (this.#asking = new AbortController());
    const path = `/applications/${encodeURIComponent(this.#name)}`;
    const query = { since: moment(wanted.since), until: wanted.live ? null : moment(wanted.until) };
    const [times, tiers, story] = await Promise.allSettled([
      ask(`${path}/history`, query),
      ask(`${path}/tiers-history`, query),
      ask("/decisions/story", { ...query, application: this.#name, limit: STORIES }),
    ]);
    if (asking.signal.aborted) return;
    this.#asking = null;
    const told = story.status === "fulfilled" ? story.value.items : [];
    const marks = told.map((one) => ({ at: seconds(one.at), text: one.sentence }));
    this.#times(times, [wanted.since, wanted.until], marks);
    this.#tiers(tiers, [wanted.since, wanted.until], marks);
  }

  #times({ value: found, reason }, limits, marks) {
    if (!found) {
      this.#nothing(`No values: ${reason.message}`);
      return;
    }
    const { steps, sla } = found;
    if (!steps.some((step) => step.count || step.percentile_ms !== null)) {
      this.#nothing("No response times in this range. Choose another one, or check the sources below.");
      return;
    }
    const times = steps.map((step) => seconds(step.start));
    const spans = found.violations.map((one) => [seconds(one.start), seconds(one.end)]);
    const constant = (value) => times.map(() => value);
    const promised = sla?.percentile ?? 95;
    const looks = {
      99: { color: "--other", width: 1, dash: [2, 3] },
      95: { color: "--batch", width: 1, dash: [4, 2] },
      50: { color: "--met", width: 1, dash: [6, 3] },
    };
    const others = [99, 95, 50].filter((percentile) => percentile !== promised);
    // The thick line is the one to hold against the SLA.
    const lines = [{ label: `p${promised}`, color: "--critical", width: 2 }, ...others.map((one) => ({ label: `p${one}`, ...looks[one] }))];
    const values = [steps.map((step) => (sla ? step.percentile_ms : step.p95_ms)), ...others.map((one) => steps.map((step) => step[`p${one}_ms`]))];
    if (sla) {
      lines.push({ label: `SLA (p${sla.percentile})`, color: "--violated", width: 1, dash: [8, 4] });
      values.push(constant(sla.response_time_ms));
    }
    this.#charts.times.show(lines, { times, values, range: limits, spans, marks });
    const rates = [{ label: "rate", color: "--critical" }];
    const rateValues = [steps.map((step) => step.rate_rps)];
    if (sla?.max_rate_rps) {
      rates.push({ label: "agreed rate", color: "--violated", width: 1, dash: [8, 4] });
      rateValues.push(constant(sla.max_rate_rps));
    }
    this.#charts.rate.show(rates, { times, values: rateValues, range: limits, spans });
    const violated = steps.reduce((sum, step) => sum + step.violated, 0);
    const judged = steps.reduce((sum, step) => sum + step.judged, 0);
    document.getElementById("in-range").textContent = judged
      ? `SLA violated in ${shown(violated)} of ${shown(judged)} intervals (${shown((100 * violated) / judged)} %). Shaded: violated. ▾: decision, hover for details. Drag to zoom.`
      : "No interval in this range has enough samples to evaluate.";
  }

  /** Words in place of response times, of which nothing is said any more. @param {string} text */
  #nothing(text) {
    for (const name of ["times", "rate"]) this.#charts[name].say(text);
    document.getElementById("in-range").textContent = "";
  }

  #tiers({ value: found, reason }, limits, marks) {
    if (!found?.tiers.some((tier) => tier.vms.length)) {
      const why = found ? "Its VMs did not run in this range, or the agent of their host did not report." : `No values: ${reason.message}`;
      for (const name of ["cpu", "weights"]) this.#charts[name].say(why);
      return;
    }
    const times = found.starts.map(seconds);
    const style = (place) => ({ color: COLORS[place % COLORS.length], dash: DASHES[Math.floor(place / COLORS.length) % DASHES.length] });
    const tiers = found.tiers.filter((tier) => tier.vms.length);
    const cpus = tiers.map((tier, place) => ({ label: tier.tier, ...style(place) }));
    this.#charts.cpu.show(cpus, { times, values: tiers.map((tier) => tier.pcpus), range: limits });
    const vms = tiers.flatMap((tier) => tier.vms.map((vm) => ({ label: `${tier.tier}: ${vm.vm}`, weight: vm.weight })));
    const weights = vms.map((vm, place) => ({ label: vm.label, stepped: true, ...style(place) }));
    this.#charts.weights.show(weights, { times, values: vms.map((vm) => vm.weight), range: limits, marks });
  }

  /** The chosen range among the links, and what is for the same range: files and the report. */
  #links(wanted) {
    const query = new URLSearchParams(location.search);
    for (const link of document.querySelectorAll("[data-range]")) {
      const chosen = Boolean(wanted.live) && link.dataset.range === (query.get("range") ?? DEFAULT_RANGE);
      if (chosen) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const given = new URLSearchParams({ since: moment(wanted.since), until: moment(wanted.until) });
    for (const link of document.querySelectorAll("[data-same-range]")) link.search = given;
  }
}

new Application(document.getElementById("charts"));
