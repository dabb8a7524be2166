// What every page does: local times, colours, menus, the CSRF token of htmx's requests, and following what happens.
import { follow } from "./live.js";

const DAY = { year: "numeric", month: "2-digit", day: "2-digit" };
const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const SHOWN = {
  clock: new Intl.DateTimeFormat("sv-SE", CLOCK),
  moment: new Intl.DateTimeFormat("sv-SE", { ...DAY, ...CLOCK }),
};

/** Write the times of a part of the page in the reader's time zone. @param {ParentNode} part */
export function localTimes(part) {
  for (const time of part.querySelectorAll("time[data-show]")) {
    const shown = SHOWN[time.dataset.show].format(new Date(time.dateTime));
    if (time.textContent !== shown) time.textContent = shown;
  }
}

const THEMES = { auto: "system", light: "light", dark: "dark" };

function themes() {
  const button = document.getElementById("theme");
  if (!button) return;
  const label = () => button.setAttribute("aria-label", `Theme: ${THEMES[document.documentElement.dataset.theme]}`);
  button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    const chosen = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
    document.documentElement.dataset.theme = chosen;
    try {
      localStorage.setItem("theme", chosen);
    } catch {
      // storage is switched off: it lasts until the next page
    }
    label();
    document.dispatchEvent(new Event("recolour"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("recolour")));
  label();
}

function menus() {
  const close = (except) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (menu !== except) menu.open = false;
  };
  document.addEventListener("click", (event) => close(event.target.closest("details.menu")));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const menu = event.target.closest?.("details.menu[open]");
    close();
    menu?.querySelector("summary").focus();
  });
}

// What a reader did to the page stays when a part of it is replaced.
Idiomorph.defaults.ignoreActiveValue = true;
Idiomorph.defaults.callbacks.beforeNodeMorphed = (node) => !node.dataset || !("keep" in node.dataset);
Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node.localName === "details");

document.addEventListener("htmx:configRequest", (event) => {
  event.detail.headers["X-CSRF-Token"] = document.querySelector('meta[name="csrf-token"]').content;
});
document.addEventListener("htmx:afterSwap", (event) => localTimes(event.detail.elt.parentNode ?? document));
document.addEventListener("renewed", (event) => localTimes(event.target));

for (const button of document.querySelectorAll("[data-print]")) button.addEventListener("click", () => print());

localTimes(document);
themes();
menus();
follow();
