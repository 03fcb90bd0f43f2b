"use strict";
// Sort tables by a click on a title, filter rows by words, show and hide the lines of figures.

const cells = (row) => [...row.cells].map((cell) => cell.textContent);
const rank = (text) => (["–", "not set"].includes(text) ? 2 : Number.isNaN(parseFloat(text)) ? 1 : 0); // numbers, texts, what is missing

// Numbers within texts by their size: 0.05 before 0.2, s2 before s10.
function natural(a, b) {
  const [xs, ys] = [a, b].map((text) => text.split(/(\d+(?:\.\d+)?)/));
  const at = xs.findIndex((x, i) => x !== ys[i]);
  return at < 0 ? xs.length - ys.length : at % 2 ? xs[at] - ys[at] : xs[at].localeCompare(ys[at] ?? "", "en");
}
const compare = (a, b) => rank(a) - rank(b) || (rank(a) ? natural(a, b) : parseFloat(a) - parseFloat(b));

for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, i) => head.addEventListener("click", () => {
    const up = head.ariaSort === "descending" || (!head.ariaSort && rank(table.tBodies[0].rows[0].cells[i].textContent) > 0);
    const rows = [...table.tBodies[0].rows].map((row) => [row.cells[i].textContent, row]);
    rows.sort(([a], [b]) => (up || rank(a) > 1 || rank(b) > 1 ? compare(a, b) : compare(b, a)));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.ariaSort = up ? "ascending" : "descending";
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }));
  const titles = heads.map((head) => head.textContent);
  for (const row of table.tBodies[0].rows) row.words = cells(row).map((cell, i) => `${titles[i]}=${cell}`).join(" ").toLowerCase();
}

for (const input of document.querySelectorAll("input[data-in]")) {
  const entries = [...document.querySelectorAll(`#${input.dataset.in} tbody tr, #${input.dataset.in} div > details`)];
  const count = input.closest("p").querySelector("output");
  const filter = () => {
    const asked = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const entry of entries) entry.hidden = !asked.every((word) => (entry.words ??= entry.textContent.toLowerCase()).includes(word));
    count.textContent = `${entries.filter((entry) => !entry.hidden).length} of ${entries.length}`;
  };
  input.addEventListener("input", filter);
  filter();
}

for (const figure of document.querySelectorAll("figure")) {
  const parts = [...figure.querySelectorAll("g[id*='.']")];
  for (const box of figure.querySelectorAll("input[data-line]")) {
    const own = parts.filter((part) => part.id.startsWith(box.dataset.line));
    const show = () => own.forEach((part) => part.style.setProperty("display", box.checked ? "" : "none"));
    box.addEventListener("change", show);
    show();
  }
}
