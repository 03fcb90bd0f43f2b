"use strict";
// What the page is built of: elements, tables, plots. Text enters the document as text nodes, never as markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
const DASHES = ["", "7 3", "2 2", "9 3 2 3"];
const SHOWN_AT_FIRST = 8;
const ASIDE = 5; // pixels
const MOST_MARKED = 25; // points of a line that are marked one by one

// ---- the document

function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null).map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

function shape(tag, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const place = (id) => document.getElementById(id);

function choice(title, options, chosen, change) {
  const list = node("select", { onchange: () => change(list.value), "aria-label": title },
    ...options.map(([value, text]) => node("option", { value, selected: value === chosen }, text)));
  return node("label", {}, title, list);
}

// ---- numbers

const finite = (value) => typeof value === "number" && Number.isFinite(value);

// Of a tie the even digit, as in the tables: 93.25 is 93.2. With one digit only quarters tie.
const tenths = (value) => (Math.abs(value % 1) === 0.25 ? value - 0.01 * Math.sign(value) : value).toFixed(1);

function shown(value, share = false) {
  if (!finite(value)) return "–";
  if (share) return tenths(100 * value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(+value.toPrecision(4));
}

// The order of texts, numbers in them by their size: 0.05 before 0.2, s2 before s10.
function natural(a, b) {
  const parts = (text) => String(text).split(/(\d+(?:\.\d+)?(?:e[-+]?\d+)?)/);
  const [xs, ys] = [parts(a), parts(b)];
  for (let i = 0; i < Math.min(xs.length, ys.length); i++) {
    const by = i % 2 ? xs[i] - ys[i] : xs[i].localeCompare(ys[i], "en");
    if (by) return by;
  }
  return xs.length - ys.length;
}

// ---- tables: click a title to sort

function sortable(columns, rows, start = null, label = "") {
  const body = node("tbody");
  let sorted = start;
  const heads = columns.map((column, i) => {
    const button = node("button", { type: "button", onclick: () => sort(i) }, column.title);
    return node("th", { class: column.number ? "number" : null, scope: "col", title: column.hint }, button);
  });
  function sort(i) {
    sorted = { column: i, up: sorted && sorted.column === i ? !sorted.up : !columns[i].number };
    draw();
  }
  function draw(kept = rows) {
    let order = kept;
    heads.forEach((head, i) => {
      if (sorted && sorted.column === i) head.setAttribute("aria-sort", sorted.up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    if (sorted) {
      const { value } = columns[sorted.column];
      order = [...kept].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const [noX, noY] = [x === null || x === undefined, y === null || y === undefined];
        if (noX || noY) return noX - noY; // what is missing comes last either way
        const by = typeof x === "number" && typeof y === "number" ? x - y : natural(x, y);
        return sorted.up ? by : -by;
      });
    }
    body.replaceChildren(...order.map((row) => node("tr", {}, ...columns.map((column) =>
      node("td", { class: column.number ? "number" : column.wrap ? "wrap" : null }, column.text ? column.text(row) : column.value(row) ?? "–")))));
  }
  draw();
  const table = node("div", { class: rows.length > 15 ? "scroll tall" : "scroll" },
    node("table", { "aria-label": label }, node("thead", {}, node("tr", {}, ...heads)), body));
  return { table, filter: (keep) => draw(rows.filter(keep)) };
}

// ---- plots

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function style(i) {
  if (i < 0) return { color: "#57606a", dash: "1 3" }; // the base
  return { color: COLORS[i % COLORS.length], dash: DASHES[i % DASHES.length] };
}

// A plot of report/plots.py: lines {name, style, x, y, low, high} with the numbers of their arrays, and titles.
function draw(box, lines, { x_title: xTitle, y_title: yTitle, share, log_x: logX, whiskers }) {
  const width = Math.max(360, Math.min(1000, box.clientWidth || 800)), height = Math.round(Math.max(280, width * 0.48));
  const edge = { left: 62, right: 16, top: 14, bottom: 44 };
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${yTitle} against ${xTitle}` });
  const alive = lines.map((one) => {
    const [x, y, low, high] = ["x", "y", "low", "high"].map((name) => DATA.arrays[one[name]]);
    const good = x.map((value, j) => finite(value) && finite(y[j]) && (!logX || value > 0));
    const pick = (values) => (values ? values.filter((_, j) => good[j]) : null);
    return { ...one, x: pick(x), y: pick(y), low: pick(low), high: pick(high) };
  }).filter((one) => one.x.length);
  if (!alive.length) {
    box.replaceChildren(node("p", { class: "soft" }, " Nothing to draw: no shown run has these numbers."));
    return;
  }
  const marked = whiskers || Math.max(...alive.map((one) => one.x.length)) < MOST_MARKED;
  const all = (key) => alive.flatMap((one) => (one[key] || []).filter(finite));
  const scaleX = (x) => (logX ? Math.log2(x) : x);
  const xs = all("x").map(scaleX), ys = [...all("y"), ...all("low"), ...all("high")];
  let [x0, x1, y0, y1] = [least(xs), most(xs), least(ys), most(ys)];
  if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
  if (marked) [x0, x1] = [x0 - 0.02 * (x1 - x0), x1 + 0.02 * (x1 - x0)];
  const space = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
  [y0, y1] = [share && y0 >= 0 ? Math.max(0, y0 - space) : y0 - space, share && y1 <= 1 ? Math.min(1, y1 + space) : y1 + space];
  const px = (x) => edge.left + ((scaleX(x) - x0) / (x1 - x0)) * (width - edge.left - edge.right);
  const py = (y) => height - edge.bottom - ((y - y0) / (y1 - y0)) * (height - edge.top - edge.bottom);
  const write = (text, x, y, anchor, extra = {}) => {
    const made = shape("text", { x, y, "text-anchor": anchor, ...extra });
    made.textContent = text;
    svg.append(made);
  };
  for (const y of ticks(y0, y1, 6)) {
    svg.append(shape("line", { x1: edge.left, x2: width - edge.right, y1: py(y), y2: py(y), stroke: "#e6e9ec" }));
    write(share ? String(+(100 * y).toPrecision(6)) : String(+y.toPrecision(6)), edge.left - 6, py(y) + 4, "end");
  }
  const xTicks = logX ? [...new Set(all("x"))].sort((a, b) => a - b) : ticks(x0, x1, width < 600 ? 5 : 9);
  for (const x of xTicks) write(String(+x.toPrecision(6)), px(x), height - edge.bottom + 17, "middle");
  svg.append(shape("path", { d: `M${edge.left} ${edge.top}V${height - edge.bottom}H${width - edge.right}`, fill: "none", stroke: "#8c959f" }));
  write(xTitle, (edge.left + width - edge.right) / 2, height - 8, "middle");
  write(yTitle, 0, 0, "middle", { transform: `translate(14 ${(edge.top + height - edge.bottom) / 2}) rotate(-90)` });
  const line = (x, y, aside = 0) => x.map((value, j) => `${j ? "L" : "M"}${(px(value) + aside).toFixed(1)} ${py(y[j]).toFixed(1)}`).join("");
  // Lines with whiskers stand a little beside one another, so that all whiskers can be seen.
  for (const [place, one] of alive.entries()) {
    const aside = whiskers ? (place - (alive.length - 1) / 2) * ASIDE : 0;
    const { color, dash } = style(one.style);
    if (one.low && !whiskers) {
      const back = one.x.map((x, j) => `L${px(x).toFixed(1)} ${py(one.low[j]).toFixed(1)}`).reverse().join("");
      svg.append(shape("path", { d: line(one.x, one.high) + back + "Z", fill: color, opacity: 0.14, stroke: "none" }));
    }
    svg.append(shape("path", { d: line(one.x, one.y, aside), fill: "none", stroke: color, "stroke-width": 1.8, "stroke-dasharray": dash }));
    if (marked || one.x.length === 1) {
      one.x.forEach((value, j) => {
        const x = px(value) + aside;
        if (one.low && whiskers && finite(one.low[j])) svg.append(shape("line", { x1: x, x2: x, y1: py(one.low[j]), y2: py(one.high[j]), stroke: color, "stroke-width": 1.4 }));
        svg.append(mark(x, py(one.y[j]), one.style, color));
      });
    }
  }
  const tip = node("div", { class: "tip", hidden: true });
  svg.addEventListener("mousemove", (event) => {
    const frame = svg.getBoundingClientRect(), size = width / frame.width;
    const [mx, my] = [(event.clientX - frame.left) * size, (event.clientY - frame.top) * size];
    const near = alive.map((one) => {
      let best = 0;
      one.x.forEach((x, j) => { if (Math.abs(px(x) - mx) < Math.abs(px(one.x[best]) - mx)) best = j; });
      return { one, j: best, away: Math.abs(py(one.y[best]) - my) };
    }).sort((a, b) => a.away - b.away).slice(0, 6);
    tip.replaceChildren(node("strong", {}, `${xTitle} ${shown(near[0].one.x[near[0].j])}`), ...near.map(({ one, j }) =>
      node("div", {}, `${one.name}: ${shown(one.y[j], share)}${one.low && finite(one.low[j]) ? ` [${shown(one.low[j], share)}, ${shown(one.high[j], share)}]` : ""}`)));
    tip.hidden = false;
    const left = (event.clientX - frame.left) + 14;
    tip.style.setProperty("left", `${left + 240 > frame.width ? Math.max(0, left - 260) : left}px`);
    tip.style.setProperty("top", `${event.clientY - frame.top + 10}px`);
  });
  svg.addEventListener("mouseleave", () => { tip.hidden = true; });
  box.replaceChildren(svg, tip);
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

function mark(x, y, i, color) {
  const r = 4, kind = i < 0 ? 0 : i % 4;
  if (kind === 0) return shape("circle", { cx: x, cy: y, r, fill: color });
  if (kind === 1) return shape("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, fill: color });
  const d = kind === 2 ? `M${x} ${y - r - 1}L${x + r + 1} ${y + r}H${x - r - 1}Z` : `M${x} ${y - r - 2}L${x + r + 1} ${y}L${x} ${y + r + 2}L${x - r - 1} ${y}Z`;
  return shape("path", { d, fill: color });
}

// A plot with its controls and a legend whose entries switch lines on and off.
// state: control -> what is chosen; choices: control -> [value, text] of each option; make: the plot of a state.
function plot(home, state, choices, make) {
  const box = node("div", { class: "canvas" }), legend = node("div", { class: "legend" }), hidden = new Map();
  function refresh() {
    const made = make();
    const on = (one, j) => (hidden.has(one.name) ? !hidden.get(one.name) : j < SHOWN_AT_FIRST);
    legend.replaceChildren(...made.lines.map((one, j) => {
      const { color, dash } = style(one.style), sample = shape("svg", { width: 30, height: 12 });
      sample.append(shape("line", { x1: 1, x2: 29, y1: 6, y2: 6, stroke: color, "stroke-width": 2, "stroke-dasharray": dash }));
      const check = node("input", { type: "checkbox", checked: on(one, j), onchange: () => { hidden.set(one.name, !check.checked); show(); } });
      return node("label", {}, check, sample, one.name);
    }));
    const show = () => draw(box, made.lines.filter(on), made);
    show();
  }
  const controls = Object.entries(choices).map(([name, options]) => choice(name, options, state[name], (value) => { state[name] = value; refresh(); }));
  home.replaceChildren(node("div", { class: "controls" }, ...controls), node("div", { class: "plot" }, box, legend));
  refresh();
  let timer = null;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(refresh, 150); });
}
