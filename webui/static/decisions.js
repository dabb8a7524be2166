// The likely cause is read anew while something happens, but not with every change: it is about minutes.

const EVERY_MS = 15000;
let askedMs = performance.now();

document.addEventListener("changed", () => {
  if (performance.now() - askedMs < EVERY_MS) return;
  askedMs = performance.now();
  for (const part of document.querySelectorAll('[hx-trigger~="again"]')) htmx.trigger(part, "again");
});
