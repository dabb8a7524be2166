// Charts over time, on uPlot: lines with a legend of hovered values, shaded spans, marks that tell a story, zoom by
// dragging, arrow keys in place of a mouse, PNG. Charts of a page share their cursor.

const HEIGHT = 220;
const NEAR_PX = 7;
const MARK_PX = 7;
const LONE_PX = 4;
const WIDE = 20; // by so much the largest value exceeds the least on a logarithmic axis
const NOTHING = "–";
const LONGEST_ANSWER_MS = 60000; // no answer after so long is none
/** Width of an axis in pixels: room for its longest text, once there are any. */
const AXIS_SIZE = (_plot, texts) => Math.max(56, 22 + 7 * Math.max(0, ...(texts ?? []).map((text) => text.length)));

// 24 hours; day and year where they change. Columns as uPlot's documentation of axes describes them.
const DAY = "\n{DD} {MMM}";
const DATE = "\n{DD} {MMM} {YYYY}";
const TIMES = [
  [31536000, "{YYYY}", null, null, null, null, null, null, 1],
  [86400, "{DD} {MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", DATE, null, DAY, null, null, null, 1],
  [1, ":{ss}", `${DATE} {HH}:{mm}`, null, `${DAY} {HH}:{mm}`, null, "\n{HH}:{mm}", null, 1],
];
const MOMENT = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });

/** The value of a CSS variable, such as "--critical". */
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Which values of a line have none beside them: of those nothing would be seen. */
function alone(plot, series) {
  const values = plot.data[series];
  return [...values.keys()].filter((at) => values[at] !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null);
}

/** A number with as many digits as it needs. @param {number|null} value @param {string} unit */
export function shown(value, unit) {
  if (value === null || value === undefined) return NOTHING;
  const size = Math.abs(value);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  const number = value.toLocaleString("en", { maximumFractionDigits: digits });
  return unit ? `${number} ${unit}` : number;
}

/**
 * @typedef {object} Line
 * @property {string} label
 * @property {string} color a CSS variable
 * @property {number} [width] pixels
 * @property {number[]} [dash]
 * @property {boolean} [stepped] a value holds until the next
 * @property {boolean} [filled] the area below it is filled
 *
 * @typedef {object} Data
 * @property {number[]} times seconds since the epoch, begin of each step
 * @property {(number|null)[][]} values of each line
 * @property {[number, number]} range seconds since the epoch
 * @property {[number, number][]} [spans] shaded, seconds since the epoch
 * @property {{at: number, text: string}[]} [marks]
 */

/** A chart in an element; its figure's buttons with data-save="png" save it. */
export class TimeChart {
  #place;
  #options;
  #plot = null;
  #lines = [];
  #data = null;
  #told = document.createElement("p");
  #read = false; // what the arrow keys told stays until the reader moves on
  #at = 0; // the value that they told last

  /**
   * @param {HTMLElement} place
   * @param {{title: string, unit?: string, logarithmic?: boolean, top?: number, stacked?: boolean,
   *   zoom?: (since: number, until: number) => void}} options ``stacked``: lines lie on each other, the first lowest
   */
  constructor(place, options) {
    this.#place = place;
    this.#options = options;
    this.#told.className = "told muted";
    this.#told.setAttribute("aria-live", "polite");
    place.dataset.keep = "";
    place.tabIndex = 0;
    place.setAttribute("role", "group");
    place.setAttribute("aria-label", `${options.title}. Arrow keys move through the values.`);
    place.addEventListener("keydown", (event) => this.#walk(event));
    for (const type of ["pointermove", "focusout"]) place.addEventListener(type, () => (this.#read = false));
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(place);
    document.addEventListener("recolour", () => this.#build());
    const save = place.closest("figure")?.querySelector('[data-save="png"]');
    save?.addEventListener("click", () => this.#save());
  }

  /** Show these lines, in place of others. @param {Line[]} lines @param {Data} data */
  show(lines, data) {
    const was = this.#data && this.#isWide();
    const same = JSON.stringify(lines) === JSON.stringify(this.#lines);
    this.#lines = lines;
    this.#data = data;
    if (same && was === this.#isWide() && this.#plot) this.#plot.setData(this.#columns());
    else this.#build();
  }

  /** Show words in place of a chart. @param {string} text */
  say(text) {
    this.#plot?.destroy();
    this.#plot = this.#data = null;
    const words = document.createElement("p");
    words.className = "empty";
    words.textContent = text;
    this.#place.replaceChildren(words);
  }

  #columns() {
    const { times, values } = this.#data;
    if (!this.#options.stacked) return [times, ...values];
    const sums = times.map(() => 0);
    const stacked = values.map((line) => line.map((value, at) => (value === null ? null : (sums[at] += value))));
    return [times, ...stacked.reverse()]; // the highest is drawn first, the others over it
  }

  #build() {
    if (!this.#data) return;
    this.#plot?.destroy();
    this.#place.replaceChildren();
    this.#plot = new uPlot(this.#config(), this.#columns(), this.#place);
    this.#place.append(this.#told);
  }

  #size() {
    return { width: Math.max(this.#place.clientWidth, 240), height: HEIGHT };
  }

  #config() {
    const { unit, top, zoom, stacked } = this.#options;
    const lines = stacked ? [...this.#lines].reverse() : this.#lines;
    const grid = { stroke: css("--line"), width: 1 };
    const axis = { stroke: css("--muted"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const range = (_plot, low, high) => [0, Math.max(top ?? 0, (high ?? 0) * 1.1) || 1];
    return {
      ...this.#size(),
      cursor: {
        drag: { x: Boolean(zoom), y: false, setScale: false },
        sync: { key: "page", filters: { pub: (type) => type !== "mousedown" && type !== "mouseup" } },
        focus: { prox: 24 },
      },
      legend: { live: true },
      scales: { x: { range: () => this.#data.range }, y: this.#isWide() ? { distr: 3, range: (_plot, low, high) => [10 ** Math.floor(Math.log10(low)), high * 1.2] } : { range } },
      axes: [
        { ...axis, values: TIMES, space: 70 },
        { ...axis, size: AXIS_SIZE, values: (_plot, ticks) => ticks.map((tick) => (tick === null ? "" : shown(tick))) },
      ],
      series: [
        { label: "time", value: (_plot, time) => (time === null ? "latest" : MOMENT.format(time * 1000)) },
        ...lines.map((line, place) => ({
          label: line.label,
          stroke: css(line.color),
          fill: line.filled ? css(line.color) : undefined,
          width: line.width ?? 1.5,
          dash: line.dash,
          paths: line.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
          points: { show: true, filter: alone, size: LONE_PX, fill: css(line.color) },
          value: (_plot, value, _series, at) => shown(this.#own(stacked ? lines.length - 1 - place : place, at), unit),
        })),
      ],
      hooks: {
        drawClear: [(plot) => this.#shade(plot)],
        draw: [(plot) => this.#mark(plot)],
        setCursor: [(plot) => this.#tell(plot)],
        setSelect: [
          (plot) => {
            const { left, width } = plot.select;
            if (width > 3) zoom?.(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
          },
        ],
      },
    };
  }

  /** A line's own value, which in a stack is not where it is drawn; the latest where nothing is pointed at. */
  #own(line, at) {
    const values = this.#data.values[line];
    return at === null ? values.findLast((value) => value !== null) : values[at];
  }

  /** Whether values differ so much that only a logarithmic axis shows all of them. */
  #isWide() {
    const known = this.#options.logarithmic ? this.#data.values.flat().filter((value) => value > 0) : [];
    // One after the other: of hundreds of VMs there are more values than a call may have arguments.
    const [least, most] = known.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, 0]);
    return most > WIDE * least;
  }

  #shade(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.fillStyle = css("--violated-soft");
    for (const [since, until] of this.#data.spans ?? []) {
      const left = Math.max(plot.valToPos(since, "x", true), bbox.left);
      const right = Math.min(plot.valToPos(until, "x", true), bbox.left + bbox.width);
      if (right > left) ctx.fillRect(left, bbox.top, Math.max(right - left, 2), bbox.height);
    }
    ctx.restore();
  }

  #mark(plot) {
    const { ctx, bbox } = plot;
    const size = MARK_PX * devicePixelRatio;
    ctx.save();
    ctx.fillStyle = css("--ink");
    for (const { at } of this.#data.marks ?? []) {
      const x = plot.valToPos(at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x - size / 2, bbox.top);
      ctx.lineTo(x + size / 2, bbox.top);
      ctx.lineTo(x, bbox.top + size);
      ctx.fill();
    }
    ctx.restore();
  }

  /** The stories of the marks near the cursor. */
  #tell(plot) {
    if (this.#read) return;
    const { left } = plot.cursor;
    const near = left < 0 ? [] : (this.#data.marks ?? []).filter(({ at }) => Math.abs(plot.valToPos(at, "x") - left) <= NEAR_PX);
    const text = near.map((mark) => mark.text).slice(0, 3).join(" · ") + (near.length > 3 ? ` · and ${near.length - 3} more` : "");
    if (this.#told.textContent !== text) this.#told.textContent = text;
  }

  #walk(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (!this.#plot || !(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const from = this.#read ? this.#at : (this.#plot.cursor.idx ?? this.#data.times.length);
    this.#read = false;
    const last = this.#data.times.length - 1;
    const at = Math.min(Math.max(from + steps[event.key], 0), last);
    this.#at = at;
    // The first step may begin before the range: at its edge the cursor is still in the chart.
    this.#plot.setCursor({ left: Math.max(this.#plot.valToPos(this.#data.times[at], "x"), 0), top: 10 });
    const values = this.#lines.map((line, place) => `${line.label} ${shown(this.#own(place, at), this.#options.unit)}`);
    const story = this.#told.textContent;
    this.#told.textContent = [MOMENT.format(this.#data.times[at] * 1000), ...values, story].filter(Boolean).join(" · ");
    this.#read = true;
  }

  /** The picture with its title and legend, as a file. */
  #save() {
    if (!this.#plot) return;
    const scale = devicePixelRatio;
    const source = this.#plot.ctx.canvas;
    const canvas = document.createElement("canvas");
    const line = 22 * scale;
    canvas.width = source.width;
    canvas.height = source.height + 2 * line;
    const ctx = canvas.getContext("2d");
    ctx.fillStyle = css("--card");
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    ctx.drawImage(source, 0, line);
    ctx.fillStyle = css("--ink");
    ctx.font = `600 ${14 * scale}px system-ui, sans-serif`;
    ctx.fillText(this.#options.title, 8 * scale, 16 * scale);
    ctx.font = `${12 * scale}px system-ui, sans-serif`;
    let x = 8 * scale;
    for (const { label, color } of this.#lines) {
      ctx.fillStyle = css(color);
      ctx.fillRect(x, canvas.height - 14 * scale, 10 * scale, 4 * scale);
      ctx.fillStyle = css("--ink");
      ctx.fillText(label, x + 14 * scale, canvas.height - 8 * scale);
      x += ctx.measureText(label).width + 30 * scale;
    }
    canvas.toBlob((blob) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `${this.#options.title.replace(/[^\p{L}\p{N}]+/gu, "-")}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  }
}

/** The JSON of a path of the REST interface. Throws an Error whose message says why there is none. */
export async function ask(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const response = await fetch(`/api/v1${path}?${new URLSearchParams(given)}`, {
    headers: { Accept: "application/json" },
    signal: AbortSignal.timeout(LONGEST_ANSWER_MS),
  });
  const body = await response.json();
  if (!response.ok) throw new Error(body.errors?.[0]?.message ?? body.detail ?? body.title);
  return body;
}
