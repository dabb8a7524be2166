// Runs before the page is painted, so that the colours never flash: "auto" follows the system.
"use strict";
(() => {
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("theme") ?? "auto";
  } catch {
    // storage is switched off: as the system says
  }
  document.documentElement.dataset.theme = chosen;
})();
