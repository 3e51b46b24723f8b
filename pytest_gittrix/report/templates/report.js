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

  // The rows, and their details, of which only those are read that somebody opens.
  const table = one("#table");
  const headings = every("th", table);
  const rows = JSON.parse(one("#rows").textContent).map(([key, group, find, values, cells], at) => ({ key, group, find, values, cells, at }));
  let lines = null;
  const detailsOf = (row) => {
    lines ??= one("#details").textContent.split("\n");
    return JSON.parse(lines[row.at]);
  };

  // What is in the document: the rows are cut into blocks, and a block that is far from what is seen is one empty row of its height.
  const BLOCK = 50;
  let order = rows;
  let shown = [];
  let blocks = [];
  let open = null;
  let printing = false;
  let height = 40;

  const detailRow = (row) => {
    const made = document.createElement("tr");
    made.className = "detail";
    made.id = `d-${row.key}`;
    made.tabIndex = -1;
    const cell = made.insertCell();
    cell.colSpan = headings.length;
    cell.innerHTML = detailsOf(row);
    const close = document.createElement("button");
    close.type = "button";
    close.className = "close";
    close.textContent = "✕";
    close.setAttribute("aria-label", "Close the details");
    close.addEventListener("click", back);
    cell.prepend(close);
    return made;
  };
  const elementsOf = (row, place) => {
    const made = document.createElement("tr");
    made.dataset.key = row.key;
    made.dataset.group = row.group;
    made.dataset.place = place;
    made.setAttribute("aria-rowindex", place + 2);
    made.innerHTML = row.cells;
    if (row !== open) return [made];
    const button = one(".open", made);
    button.setAttribute("aria-expanded", "true");
    button.setAttribute("aria-controls", `d-${row.key}`);
    return [made, detailRow(row)];
  };
  const fill = (block) => {
    if (block.filled) return;
    block.filled = true;
    const first = block.number * BLOCK;
    block.body.replaceChildren(...shown.slice(first, first + BLOCK).flatMap((row, at) => elementsOf(row, first + at)));
  };
  const empty = (block, tall) => {
    block.filled = false;
    const gap = document.createElement("tr");
    gap.className = "gap";
    gap.setAttribute("aria-hidden", "true");
    gap.insertCell().colSpan = headings.length;
    gap.cells[0].style.height = `${tall}px`;
    block.body.replaceChildren(gap);
  };
  const staysFilled = (block) => printing || !block.number || block.body.contains(document.activeElement) || one(".detail", block.body);
  const near = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting, boundingClientRect } of entries) {
        const block = blocks[target.dataset.number];
        if (!block || block.body !== target) continue;
        if (isIntersecting) fill(block);
        else if (block.filled && !staysFilled(block)) empty(block, boundingClientRect.height);
      }
    },
    { rootMargin: "1000px 0px" },
  );
  const draw = () => {
    near.disconnect();
    blocks.forEach((block) => block.body.remove());
    blocks = [];
    for (let first = 0; first < shown.length; first += BLOCK) {
      const block = { number: blocks.length, body: document.createElement("tbody"), filled: false };
      block.body.dataset.number = block.number;
      blocks.push(block);
      if (first) empty(block, Math.min(BLOCK, shown.length - first) * height);
      else fill(block);
    }
    table.append(...blocks.map((block) => block.body));
    const first = one("tbody tr:not(.detail)", table);
    if (first) height = first.getBoundingClientRect().height;
    blocks.forEach((block) => near.observe(block.body));
    table.setAttribute("aria-rowcount", shown.length + 1);
    one("#shown").textContent = `${shown.length} shown`;
    one("#none").hidden = shown.length > 0;
  };
  const elementOf = (row) => {
    const place = shown.indexOf(row);
    if (place < 0) return null;
    const block = blocks[Math.floor(place / BLOCK)];
    fill(block);
    return one(`tr[data-place="${place}"]`, block.body);
  };

  // Which rows are shown.
  const find = one("#find");
  const chosen = new Set();
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = order.filter((row) => (!chosen.size || chosen.has(row.group)) && words.every((word) => row.find.includes(word)));
    draw();
  };
  const showAll = () => {
    find.value = "";
    chosen.clear();
    every(".legend button").forEach((button) => button.setAttribute("aria-pressed", "false"));
    filter();
  };
  find.addEventListener("input", filter);
  for (const button of every(".legend button[data-group]")) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      chosen[on ? "add" : "delete"](button.dataset.group);
      filter();
    });
  }
  one("#clear").addEventListener("click", () => {
    showAll();
    find.focus();
  });

  // In which order.
  headings.forEach((heading, column) => {
    one("button", heading).addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const way = up ? 1 : -1;
      const compare = heading.dataset.kind === "number" ? (a, b) => a - b : new Intl.Collator("en").compare;
      order = [...rows].sort((a, b) => way * compare(a.values[column], b.values[column]));
      filter();
    });
  });

  // One row's details at a time; which one is in the address, so that it can be sent to somebody.
  const close = () => {
    if (!open) return;
    const element = elementOf(open);
    open = null;
    if (!element) return;
    element.nextElementSibling?.classList.contains("detail") && element.nextElementSibling.remove();
    one(".open", element).setAttribute("aria-expanded", "false");
    one(".open", element).removeAttribute("aria-controls");
  };
  const show = (row) => {
    close();
    open = row;
    if (!shown.includes(row)) showAll();
    const element = elementOf(row);
    const place = Number(element.dataset.place);
    if (!element.nextElementSibling?.classList.contains("detail")) element.replaceWith(...elementsOf(row, place));
    history.replaceState(null, "", `#d-${row.key}`);
    elementOf(row).scrollIntoView({ block: "start" });
    document.getElementById(`d-${row.key}`).focus({ preventScroll: true });
  };
  const back = () => {
    const row = open;
    close();
    history.replaceState(null, "", location.pathname + location.search);
    const element = row && elementOf(row);
    if (!element) return;
    element.scrollIntoView({ block: "nearest" });
    one(".open", element).focus({ preventScroll: true });
  };
  table.addEventListener("click", (event) => {
    const element = event.target.closest("tr[data-key]");
    if (!element || getSelection().toString()) return;
    const row = shown[element.dataset.place];
    if (row === open) back();
    else show(row);
  });
  const openFromAddress = () => {
    const key = /^#d-([0-9a-f]+)$/.exec(location.hash);
    const row = key && rows.find((other) => other.key === key[1]);
    if (row) show(row);
  };
  addEventListener("hashchange", openFromAddress);

  // By keyboard.
  const step = (by) => {
    if (!shown.length) return;
    const focused = document.activeElement.closest("tr[data-place]");
    const here = focused ? Number(focused.dataset.place) : open ? shown.indexOf(open) : -1;
    const next = here < 0 ? 0 : Math.min(Math.max(here + by, 0), shown.length - 1);
    if (open) return show(shown[next]);
    const button = one(".open", elementOf(shown[next]));
    button.scrollIntoView({ block: "nearest" });
    button.focus({ preventScroll: true });
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (document.activeElement === find && find.value) {
        find.value = "";
        filter();
      } else if (open) back();
      return;
    }
    if (event.target.matches("input")) return;
    if (event.key === "/") {
      event.preventDefault();
      find.focus();
    } else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
  });

  // On paper there is every row that fits.
  addEventListener("beforeprint", () => {
    printing = true;
    blocks.forEach(fill);
  });
  addEventListener("afterprint", () => {
    printing = false;
  });

  filter();
  openFromAddress();
  performance.mark("usable");
})();
