"use strict";
(() => {
  const root = document.documentElement;
  const every = (selector, of = document) => [...of.querySelectorAll(selector)];
  const one = (selector, of = document) => of.querySelector(selector);
  root.classList.add("js");

  // Light or dark: as the system says, until somebody says otherwise.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => root.classList.toggle("dark", system.matches);
  follow();
  system.addEventListener("change", follow);
  one("#theme").addEventListener("click", () => {
    system.removeEventListener("change", follow);
    root.classList.toggle("dark");
  });

  // Which samples are shown.
  const body = one("#table tbody");
  const rows = () => [...body.rows];
  const find = one("#find");
  const chosen = new Set();
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows()) {
      const fits = (!chosen.size || chosen.has(row.dataset.outcome)) && words.every((word) => row.dataset.find.includes(word));
      row.hidden = !fits;
      row.style.display = fits ? "" : "none";
      count += fits;
    }
    one("#shown").textContent = `${count} shown`;
    one("#none").hidden = count > 0;
  };
  find.addEventListener("input", filter);
  for (const button of every(".legend button")) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      chosen[on ? "add" : "delete"](button.dataset.outcome);
      filter();
    });
  }
  one("#clear").addEventListener("click", () => {
    find.value = "";
    chosen.clear();
    every(".legend button").forEach((button) => button.setAttribute("aria-pressed", "false"));
    filter();
    find.focus();
  });

  // In which order.
  every("#table th").forEach((heading, column) => {
    one("button", heading).addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      every("#table th").forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value;
      const numbers = heading.dataset.kind === "number";
      const order = (a, b) => (numbers ? value(a) - value(b) : value(a).localeCompare(value(b), "en"));
      body.append(...rows().sort((a, b) => (up ? order(a, b) : order(b, a))));
    });
  });

  // One sample at a time; which one is in the address, so that it can be sent to somebody.
  let from = null;
  const close = () => {
    every(".detail.shown").forEach((detail) => detail.classList.remove("shown"));
    every('.open[aria-expanded="true"]').forEach((button) => button.setAttribute("aria-expanded", "false"));
  };
  const open = (key, focus) => {
    const detail = document.getElementById(`d-${key}`);
    if (!detail) return;
    close();
    detail.classList.add("shown");
    from = one(`tr[data-key="${key}"] .open`);
    from.setAttribute("aria-expanded", "true");
    history.replaceState(null, "", `#d-${key}`);
    detail.scrollIntoView({ block: "start" });
    if (focus) detail.focus({ preventScroll: true });
  };
  const back = () => {
    close();
    history.replaceState(null, "", location.pathname + location.search);
    if (from) {
      from.scrollIntoView({ block: "center" });
      from.focus({ preventScroll: true });
    }
  };
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (!row || getSelection().toString()) return;
    if (one(".open", row).getAttribute("aria-expanded") === "true") back();
    else open(row.dataset.key, true);
  });
  every(".close").forEach((button) => button.addEventListener("click", back));
  const openFromHash = () => {
    const key = /^#d-([0-9a-f]+)$/.exec(location.hash);
    if (key) open(key[1], true);
  };
  addEventListener("hashchange", openFromHash);
  openFromHash();

  // By keyboard.
  const step = (by) => {
    const buttons = rows().filter((row) => !row.hidden).map((row) => one(".open", row));
    if (!buttons.length) return;
    const at = buttons.indexOf(document.activeElement);
    const expanded = buttons.findIndex((button) => button.getAttribute("aria-expanded") === "true");
    const here = at >= 0 ? at : expanded;
    const next = here < 0 ? 0 : Math.min(Math.max(here + by, 0), buttons.length - 1);
    if (expanded >= 0) open(buttons[next].closest("tr").dataset.key, true);
    else buttons[next].focus();
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (document.activeElement === find && find.value) {
        find.value = "";
        filter();
      } else if (one(".detail.shown")) back();
      return;
    }
    if (event.target.matches("input")) return;
    if (event.key === "/") {
      event.preventDefault();
      find.focus();
    } else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
  });
})();
