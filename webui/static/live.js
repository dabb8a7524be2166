// Follows what happens: the server says that something changed, and the parts of the page are fetched anew.
//
// Parts are elements with data-part; they are replaced by what the same address answers to a request for its live part.
// Scripts listen to the event "changed" on the document. Nothing is asked for while the page is hidden. Without a stream
// (too many are open) the page asks once an interval.

const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 15000;
const SILENCE_MS = 15000; // the server says something every 10 s
const ANSWER_MS = 10000; // no answer after so long is none
const LONGEST_STREAM_WAIT_MS = 30000;
const GROWN_OLD_MS = 10000; // where nothing comes any more, that is what the page must show
const TOO_MANY = 429;

/** The manager answers, but not yet: too many requests of this user. */
class Throttled extends Error {}

/** Follow the topic that the body names, if any. */
export function follow() {
  const { live: topic, intervalS } = document.body.dataset;
  if (topic) new Follower(topic, Math.max(1, Number(intervalS)) * 1000).start();
}

/**
 * Fetch a part anew; what the reader did to it stays. Throws when there is no answer, or one that is no page.
 * @param {Element} part @param {AbortSignal} signal
 */
async function renew(part, signal) {
  const url = location.href;
  const response = await fetch(url, { headers: { "HX-Request": "true" }, cache: "no-store", signal });
  const elsewhere = response.headers.get("HX-Redirect");
  if (elsewhere) {
    location.assign(elsewhere); // the session has ended
    return;
  }
  if (response.status === TOO_MANY) throw new Throttled();
  if (response.status >= 500) throw new Error(response.statusText);
  const text = await response.text();
  if (url !== location.href || signal.aborted) return; // the reader went on meanwhile
  Idiomorph.morph(part, text, { morphStyle: "innerHTML" });
  htmx.process(part);
  part.dispatchEvent(new Event("renewed", { bubbles: true }));
}

class Follower {
  #url;
  #intervalMs;
  #shown = document.getElementById("connection");
  #stream = null;
  #mark = "";
  #waitMs = FIRST_WAIT_MS;
  #streamWaitMs = FIRST_WAIT_MS;
  #lostAt = null;
  #timers = {};
  #renewing = null;
  #renewedAt = performance.now();
  #tookMs = 0;
  #again = false;

  /** @param {string} topic @param {number} intervalMs time between questions where there is no stream */
  constructor(topic, intervalMs) {
    this.#url = `/live?topic=${encodeURIComponent(topic)}`;
    this.#intervalMs = intervalMs;
  }

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#pause() : this.#resume()));
    addEventListener("pagehide", () => this.#pause());
    addEventListener("pageshow", (event) => event.persisted && this.#resume());
    if (document.hidden) this.#say("paused", "paused while hidden");
    else {
      this.#open();
      if (document.querySelector("[data-more]")) addEventListener("load", () => setTimeout(() => this.#rest()));
    }
  }

  /** The rest of a long page, of which there is only as much at first as can be drawn at once. */
  #rest() {
    this.#renewedAt = 0;
    this.#renew();
  }

  #open() {
    this.#close();
    const stream = new EventSource(`${this.#url}&seen=${this.#mark}`);
    this.#stream = stream;
    // No word for too long means that the connection is gone, though nobody said so.
    const listen = () => this.#after("silence", SILENCE_MS, () => this.#broken());
    const heard = (event) => {
      this.#mark = event.data;
      listen();
    };
    listen();
    stream.addEventListener("hello", (event) => {
      heard(event);
      const missed = this.#lostAt !== null;
      this.#found();
      this.#streamWaitMs = FIRST_WAIT_MS;
      this.#clear("ask", "again");
      this.#say("live", "live");
      if (missed) this.#renew();
    });
    stream.addEventListener("changed", (event) => {
      heard(event);
      this.#renew();
    });
    stream.addEventListener("alive", (event) => {
      heard(event);
      if (performance.now() - this.#renewedAt >= GROWN_OLD_MS) this.#renew();
    });
    stream.addEventListener("bye", () => this.#open());
    stream.addEventListener("error", () => this.#broken());
  }

  /** The stream ended, or there is none: ask without it, which also tells whether the manager is there at all. */
  #broken() {
    this.#close();
    this.#after("again", this.#streamWaitMs, () => this.#open());
    this.#streamWaitMs = Math.min(2 * this.#streamWaitMs, LONGEST_STREAM_WAIT_MS);
    this.#renew();
  }

  /**
   * All parts anew, once more after that if something changed meanwhile; not more often than twice an interval, nor, up
   * to once an interval, so often that a slow manager does little else.
   */
  async #renew() {
    if (this.#renewing) {
      this.#again = true;
      return;
    }
    const gapMs = Math.min(Math.max(this.#intervalMs / 2, 10 * this.#tookMs), this.#intervalMs);
    const early = this.#renewedAt + gapMs - performance.now();
    if (early > 0 && this.#lostAt === null) {
      this.#after("renew", early, () => this.#renew());
      return;
    }
    this.#clear("renew");
    this.#renewing = new AbortController();
    this.#again = false;
    const { signal } = this.#renewing;
    const bounded = AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MS)]);
    const begunAt = performance.now();
    document.dispatchEvent(new Event("changed"));
    try {
      await Promise.all([...document.querySelectorAll("[data-part]")].map((part) => renew(part, bounded)));
      this.#renewing = null;
      this.#renewedAt = performance.now();
      this.#tookMs = this.#renewedAt - begunAt;
      if (!signal.aborted) this.#answered();
    } catch (error) {
      this.#renewing = null;
      if (!signal.aborted) this.#lost(error);
    }
  }

  #answered() {
    if (this.#stream === null) {
      // No stream, but an answer: where it was lost, there may be a stream again.
      const back = this.#lostAt !== null;
      this.#found();
      this.#say("live", `live, every ${Math.round(this.#intervalMs / 1000)} s`);
      this.#after("ask", this.#intervalMs, () => this.#renew());
      if (back) this.#open();
    } else if (this.#again) this.#renew();
  }

  #found() {
    this.#lostAt = null;
    this.#waitMs = FIRST_WAIT_MS;
  }

  /** @param {Error} why */
  #lost(why) {
    this.#close();
    this.#lostAt ??= new Date();
    const since = this.#lostAt.toLocaleTimeString("sv-SE");
    const [what, hint] = why instanceof Throttled ? ["too many requests", ""] : ["connection lost", " Is equipoise manager running?"];
    this.#say("lost", `${what} at ${since}: what is shown is from then.${hint} Trying again.`);
    this.#after("ask", this.#waitMs * (0.75 + Math.random() / 2), () => this.#renew());
    this.#waitMs = Math.min(2 * this.#waitMs, LONGEST_WAIT_MS);
    this.#clear("again");
  }

  #pause() {
    this.#close();
    this.#clear("ask", "again", "renew");
    this.#renewing?.abort();
    this.#renewing = null;
    this.#say("paused", "paused while hidden");
  }

  #resume() {
    this.#open();
    this.#renewedAt = 0;
    this.#renew();
  }

  #close() {
    this.#clear("silence");
    this.#stream?.close();
    this.#stream = null;
  }

  #after(name, ms, act) {
    clearTimeout(this.#timers[name]);
    this.#timers[name] = setTimeout(act, ms);
  }

  #clear(...names) {
    for (const name of names) clearTimeout(this.#timers[name]);
  }

  #say(state, text) {
    this.#shown.dataset.state = state;
    if (this.#shown.textContent !== text) this.#shown.textContent = text;
  }
}
