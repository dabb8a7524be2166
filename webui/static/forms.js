// What forms do beyond what they do without scripts: mark fields that are checked while they are filled in, copy texts,
// narrow long lists of boxes, and take the reader to what was refused.
"use strict";

/** Say of the field that a message belongs to whether it is right. @param {HTMLElement} message */
function mark(message) {
  const field = document.getElementById(message.dataset.for ?? "");
  if (field === null) return;
  if (message.textContent === "") field.removeAttribute("aria-invalid");
  else field.setAttribute("aria-invalid", "true");
}

/** A field that narrows a list of boxes to those whose words hold a text. @param {HTMLElement} list */
function narrow(list) {
  const labels = [...list.querySelectorAll("label")];
  if (labels.length <= 12) return;
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "Narrow this list";
  search.setAttribute("aria-label", "Narrow this list");
  search.addEventListener("input", () => {
    const text = search.value.toLowerCase();
    for (const label of labels) {
      label.hidden = !label.textContent.toLowerCase().includes(text) && !label.querySelector("input").checked;
    }
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") event.preventDefault(); // narrows, does not save
  });
  list.before(search);
}

/** Copy the text of the element that a button names, and say so on it. @param {HTMLButtonElement} button */
async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  const said = (button.dataset.said ??= button.innerHTML); // pressed again, it still says what it does
  try {
    await navigator.clipboard.writeText(source.value ?? source.textContent);
    button.textContent = "Copied";
  } catch {
    // Without https browsers keep the clipboard to themselves: the text is marked, for Ctrl+C.
    if (source.select) source.select();
    else getSelection().selectAllChildren(source);
    button.textContent = "Marked: press Ctrl+C";
  }
  setTimeout(() => (button.innerHTML = said), 3000);
}

// A press on a button leaves the field before, which is checked then. The answer may come before the button is let go:
// a message that goes would move the button away, and the press would be on nothing.
let pressed = false;
const waiting = [];
document.addEventListener("pointerdown", () => (pressed = true));
for (const name of ["pointerup", "pointercancel"]) {
  document.addEventListener(name, () => {
    pressed = false;
    setTimeout(() => waiting.splice(0).forEach((show) => show())); // after the click
  });
}
document.addEventListener("htmx:beforeSwap", (event) => {
  const { target, serverResponse, shouldSwap } = event.detail;
  if (!pressed || !shouldSwap || target.dataset.for === undefined) return;
  event.detail.shouldSwap = false;
  waiting.push(() => {
    target.innerHTML = serverResponse;
    mark(target);
  });
});
document.addEventListener("htmx:afterSwap", (event) => mark(event.detail.target));
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.matches?.("[data-find]")) event.preventDefault(); // searches, does not save
});
for (const list of document.querySelectorAll(".picks")) {
  if (!list.parentElement.querySelector("[data-find]")) narrow(list); // else the manager searches
}
document.getElementById("problems")?.focus();
