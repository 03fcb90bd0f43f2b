"use strict";
// The report's page. All text of runs and models enters the document as text nodes, never as markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
const DASHES = ["", "7 3", "2 2", "9 3 2 3"];
const SHOWN_AT_FIRST = 8;
const T_95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131];

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

const isShare = (name) => /(pass@|maj@|correct|incorrect|invalid|share|clipped|sampled_correct)/.test(name) && !/reward/.test(name);
const finite = (value) => typeof value === "number" && Number.isFinite(value);

function shown(value, name) {
  if (!finite(value)) return "–";
  if (isShare(name)) return (100 * value).toFixed(1);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(+value.toPrecision(4));
}

function interval(estimate, name) {
  if (!estimate) return "–";
  const [value, low, high] = estimate;
  return finite(low) ? `${shown(value, name)} [${shown(low, name)}, ${shown(high, name)}]` : shown(value, name);
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

const unit = (name) => (isShare(name) ? `${name} (%)` : name);

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
  return { color: COLORS[i % COLORS.length], dash: DASHES[i % DASHES.length] };
}

// series: {name, i, x, y, low, high, marks, ribbon}; low and high may be missing, their line is a ribbon or whiskers
function draw(box, series, { xTitle, yTitle, yName, logX = false }) {
  const width = Math.max(360, Math.min(1000, box.clientWidth || 800)), height = Math.round(Math.max(280, width * 0.48));
  const edge = { left: 62, right: 16, top: 14, bottom: 44 };
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${yTitle} against ${xTitle}` });
  const alive = series.map((one) => {
    const good = one.x.map((x, j) => finite(x) && finite(one.y[j]) && (!logX || x > 0));
    const pick = (values) => (values ? values.filter((_, j) => good[j]) : null);
    return { ...one, x: pick(one.x), y: pick(one.y), low: pick(one.low), high: pick(one.high) };
  }).filter((one) => one.x.length);
  if (!alive.length) {
    box.replaceChildren(node("p", { class: "soft" }, " Nothing to draw: no shown run has these numbers."));
    return;
  }
  const all = (key) => alive.flatMap((one) => (one[key] || []).filter(finite));
  const scaleX = (x) => (logX ? Math.log2(x) : x);
  const xs = all("x").map(scaleX), ys = [...all("y"), ...all("low"), ...all("high")];
  let [x0, x1, y0, y1] = [least(xs), most(xs), least(ys), most(ys)];
  if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
  if (alive.some((one) => one.marks)) [x0, x1] = [x0 - 0.02 * (x1 - x0), x1 + 0.02 * (x1 - x0)];
  const space = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
  const share = isShare(yName);
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
  const line = (x, y) => x.map((value, j) => `${j ? "L" : "M"}${px(value).toFixed(1)} ${py(y[j]).toFixed(1)}`).join("");
  for (const one of alive) {
    const { color, dash } = style(one.i);
    if (one.low && (!one.marks || one.ribbon)) {
      const back = one.x.map((x, j) => `L${px(x).toFixed(1)} ${py(one.low[j]).toFixed(1)}`).reverse().join("");
      svg.append(shape("path", { d: line(one.x, one.high) + back + "Z", fill: color, opacity: 0.14, stroke: "none" }));
    }
    svg.append(shape("path", { d: line(one.x, one.y), fill: "none", stroke: color, "stroke-width": 1.8, "stroke-dasharray": dash }));
    if (one.marks || one.x.length === 1) {
      one.x.forEach((x, j) => {
        if (one.low && !one.ribbon && finite(one.low[j])) svg.append(shape("line", { x1: px(x), x2: px(x), y1: py(one.low[j]), y2: py(one.high[j]), stroke: color, "stroke-width": 1.4 }));
        svg.append(mark(px(x), py(one.y[j]), one.i, color));
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
    tip.replaceChildren(node("strong", {}, `${xTitle} ${shown(near[0].one.x[near[0].j], "")}`), ...near.map(({ one, j }) =>
      node("div", {}, `${one.name}: ${shown(one.y[j], yName)}${one.low && finite(one.low[j]) ? ` [${shown(one.low[j], yName)}, ${shown(one.high[j], yName)}]` : ""}`)));
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
  const r = 4, kind = i % 4;
  if (kind === 0) return shape("circle", { cx: x, cy: y, r, fill: color });
  if (kind === 1) return shape("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, fill: color });
  const d = kind === 2 ? `M${x} ${y - r - 1}L${x + r + 1} ${y + r}H${x - r - 1}Z` : `M${x} ${y - r - 2}L${x + r + 1} ${y}L${x} ${y + r + 2}L${x - r - 1} ${y}Z`;
  return shape("path", { d, fill: color });
}

// A plot with its controls and a legend whose entries switch lines on and off.
function plot(home, controls, make) {
  const box = node("div", { class: "canvas" }), legend = node("div", { class: "legend" }), hidden = new Map();
  function refresh() {
    const { series, options } = make();
    const on = (one, j) => (hidden.has(one.name) ? !hidden.get(one.name) : j < SHOWN_AT_FIRST);
    legend.replaceChildren(...series.map((one, j) => {
      const { color, dash } = style(one.i), sample = shape("svg", { width: 30, height: 12 });
      sample.append(shape("line", { x1: 1, x2: 29, y1: 6, y2: 6, stroke: color, "stroke-width": 2, "stroke-dasharray": dash }));
      const check = node("input", { type: "checkbox", checked: on(one, j), onchange: () => { hidden.set(one.name, !check.checked); show(); } });
      return node("label", {}, check, sample, one.name);
    }));
    const show = () => draw(box, series.filter(on), options);
    show();
  }
  home.replaceChildren(node("div", { class: "controls" }, ...controls(refresh)), node("div", { class: "plot" }, box, legend));
  refresh();
  let timer = null;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(refresh, 150); });
}

// The mean of curves at the places of the first one, with a t interval (of shares: its part between 0 and 1).
// Of two curves their range: a t interval over two is wider than any plot.
function mean(curves, share) {
  const good = curves.map(([x, y]) => [x.filter((_, j) => finite(y[j])), y.filter(finite)]).filter(([x]) => x.length);
  if (!good.length) return null;
  const end = Math.min(...good.map(([x]) => x[x.length - 1])), x = good[0][0].filter((value) => value <= end);
  const at = ([xs, ys], value) => {
    let j = xs.findIndex((other) => other >= value);
    if (j <= 0) return j === 0 ? ys[0] : ys[ys.length - 1];
    const part = (value - xs[j - 1]) / (xs[j] - xs[j - 1]);
    return ys[j - 1] + part * (ys[j] - ys[j - 1]);
  };
  const found = { x, y: [], low: good.length > 1 ? [] : null, high: good.length > 1 ? [] : null };
  for (const value of x) {
    const values = good.map((curve) => at(curve, value)), count = values.length;
    const middle = values.reduce((a, b) => a + b, 0) / count;
    found.y.push(middle);
    if (count > 1) {
      const spread = Math.sqrt(values.reduce((sum, one) => sum + (one - middle) ** 2, 0) / (count - 1));
      const half = ((T_95[count - 2] || 1.96) * spread) / Math.sqrt(count);
      found.low.push(count === 2 ? Math.min(...values) : share ? Math.max(0, middle - half) : middle - half);
      found.high.push(count === 2 ? Math.max(...values) : share ? Math.min(1, middle + half) : middle + half);
    }
  }
  return found;
}

// ---- sections

const byResult = DATA.groups.map((group, i) => [group, i]).sort(([a], [b]) => (b.final?.["pass@1"]?.[0] ?? -1) - (a.final?.["pass@1"]?.[0] ?? -1));
const HEADLINES = ["pass@1", ...(DATA.majority ? [DATA.majority] : []), "invalid"]; // correct is pass@1
const MEASURES = [...HEADLINES, "incorrect"];

function header() {
  const count = (status) => DATA.runs.filter((run) => run.status === status).length;
  const states = [...new Set(DATA.runs.map((run) => run.status))].map((status) => `${count(status)} ${status}`);
  place("title").append(DATA.title);
  document.title = DATA.title;
  const differs = DATA.keys.length ? `; they differ in ${DATA.keys.join(", ")}` : "";
  place("subtitle").append(`${DATA.runs.length} run${DATA.runs.length === 1 ? "" : "s"} (${states.join(", ")}) in ${DATA.groups.length} group${DATA.groups.length === 1 ? "" : "s"}${differs}. Made ${DATA.made}.`);
}

function overview() {
  const notes = DATA.runs.flatMap((run) => run.notes.map((note) => `${run.name}: ${note}`)).concat(DATA.notes);
  if (notes.length) place("notes").append(node("details", { class: "notes", open: notes.length < 6 }, node("summary", {}, `${notes.length} note${notes.length === 1 ? "" : "s"} about these folders`), node("ul", {}, ...notes.map((note) => node("li", {}, note)))));
  const columns = [
    { title: "group", value: (group) => group.label, wrap: true },
    { title: "runs", value: (group) => group.runs.length, number: true },
    ...["final", "base"].flatMap((part) => HEADLINES.map((name) => ({
      title: `${part} ${name} %`, number: true, value: (group) => group[part]?.[name]?.[0], text: (group) => interval(group[part]?.[name], name),
      hint: "mean of the group's runs with a 95 % t interval over them; for a single run the interval is over test problems",
    }))),
  ];
  const start = { column: columns.findIndex((column) => column.title === "final pass@1 %"), up: false };
  place("groups").append(sortable(columns, DATA.groups, start, "groups").table,
    node("p", { class: "soft" }, "In brackets: 95 % intervals, over repeated runs where there are several, else over test problems (which leaves out how training runs vary)."));
}

function runTable() {
  const value = (name) => (run) => run.values[name];
  const columns = [
    { title: "run", value: (run) => run.name },
    { title: "status", value: (run) => run.status },
    ...DATA.keys.map((key) => ({ title: key, value: (run) => run.settings[key] })),
    { title: "seed", number: true, value: value("seed"), text: (run) => shown(run.values.seed, "") },
    ...["final", "base"].flatMap((part) => HEADLINES.map((name) => ({
      title: `${part} ${name} %`, number: true, value: (run) => run[part][name]?.[0], text: (run) => interval(run[part][name], name), hint: "95 % interval over test problems",
    }))),
    ...["baseline", "effective_positive", "positive_share", "n_train", "updates"].filter((name) => DATA.runs.some((run) => finite(run.values[name])))
      .filter((name) => !DATA.keys.includes(name)).map((name) => ({ title: unit(name), number: true, value: value(name), text: (run) => shown(run.values[name], name) })),
    { title: "seconds", number: true, value: value("seconds"), text: (run) => shown(run.values.seconds === null ? null : Math.round(run.values.seconds), "") },
  ];
  const made = sortable(columns, DATA.runs, null, "runs");
  const words = (run) => [run.name, run.status, run.label, ...Object.entries(run.settings).map(([key, one]) => `${key}=${one}`)].join(" ").toLowerCase();
  const input = node("input", { type: "search", placeholder: "words, as in topr seed=1", oninput: () => {
    const asked = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    made.filter((run) => asked.every((word) => words(run).includes(word)));
  } });
  place("run-table").append(node("div", { class: "controls" }, node("label", {}, "filter", input)), made.table);
}

function curves() {
  const evals = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.curve.values)))].filter((name) => !name.endsWith("_se")).sort();
  const training = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.metrics)))].sort();
  const options = [...evals.map((name) => [`eval ${name}`, `test: ${name}`]), ...training.map((name) => [`train ${name}`, `training: ${name}`])];
  if (!options.length) { place("curve-plot").append(node("p", { class: "soft" }, "No run has logged anything yet.")); return; }
  const first = options.some(([value]) => value === "eval pass@1") && DATA.runs.some((run) => run.curve.steps.length > 2) ? "eval pass@1" : options.find(([value]) => value === "train loss")?.[0] ?? options[0][0];
  const state = { metric: first, x: "steps", lines: "groups" };
  const curve = (run, kind, name) => (kind === "eval" ? [run.curve[state.x], run.curve.values[name] || []] : [run[state.x], run.metrics[name] || []]);
  plot(place("curve-plot"), (refresh) => [
    choice("show", options, first, (value) => { state.metric = value; refresh(); }),
    choice("against", [["steps", "optimizer steps"], ["samples", "samples seen"]], "steps", (value) => { state.x = value; refresh(); }),
    choice("lines", [["groups", "groups: mean, 95 % interval (of two: range)"], ["runs", "single runs"]], "groups", (value) => { state.lines = value; refresh(); }),
  ], () => {
    const [kind, ...rest] = state.metric.split(" "), name = rest.join(" ");
    const series = state.lines === "groups"
      ? byResult.map(([group, i]) => ({ group, i, band: mean(group.runs.map((r) => curve(DATA.runs[r], kind, name)), isShare(name)) })).filter((one) => one.band)
        .map(({ group, i, band }) => ({ name: group.runs.length > 1 ? `${group.label} (${group.runs.length} runs)` : group.label, i, ...band }))
      : byResult.flatMap(([group, i]) => group.runs.map((r) => ({ name: DATA.runs[r].name, i, x: curve(DATA.runs[r], kind, name)[0], y: curve(DATA.runs[r], kind, name)[1] })).filter((one) => one.y.length));
    return { series, options: { xTitle: state.x === "steps" ? "optimizer steps" : "samples seen", yTitle: unit(name), yName: name } };
  });
}

function sweep() {
  const names = Object.keys(DATA.axes);
  if (!names.length) { place("sweep-plot").append(node("p", { class: "soft" }, "Nothing numeric differs between these runs.")); return; }
  const state = { x: names[0], y: "pass@1", by: DATA.keys.find((key) => key !== names[0] && !["effective_positive", "baseline"].includes(key)) ?? "" };
  plot(place("sweep-plot"), (refresh) => [
    choice("against", names.map((name) => [name, name]), state.x, (value) => { state.x = value; refresh(); }),
    choice("show", MEASURES.map((name) => [name, `final ${name}`]), "pass@1", (value) => { state.y = value; refresh(); }),
    choice("lines by", [["", "–"], ...DATA.differing.map((key) => [key, key])], state.by, (value) => { state.by = value; refresh(); }),
  ], () => {
    const lines = new Map();
    DATA.runs.forEach((run, r) => {
      const x = DATA.axes[state.x][r], y = run.final[state.y]?.[0];
      if (!finite(x) || !finite(y)) return;
      const value = run.settings[state.by] ?? "–";
      const name = !state.by ? "all runs" : state.by.endsWith(".name") ? value : `${state.by}=${value}`;
      if (!lines.has(name)) lines.set(name, new Map());
      // Shares that follow from the drawn set differ a little between repetitions.
      const near = Number(x.toPrecision(2));
      if (!lines.get(name).has(near)) lines.get(name).set(near, []);
      lines.get(name).get(near).push(run.final[state.y]);
    });
    const series = [...lines].sort(([a], [b]) => natural(a, b)).map(([name, points], i) => {
      const found = [...points].sort(([a], [b]) => a - b).map(([x, values]) => {
        if (values.length === 1) return [x, ...values[0]];
        const band = mean(values.map((one) => [[0], [one[0]]]), true);
        return [x, band.y[0], band.low[0], band.high[0]];
      });
      return { name, i, marks: true, x: found.map((one) => one[0]), y: found.map((one) => one[1]), low: found.map((one) => one[2]), high: found.map((one) => one[3]) };
    });
    return { series, options: { xTitle: state.x, yTitle: `final ${unit(state.y)}`, yName: state.y } };
  });
}

function samples() {
  if (!DATA.runs.some((run) => run.kinds.final)) { place("k-plot").append(node("p", { class: "soft" }, "No run has been evaluated yet.")); return; }
  const state = { what: "pass@k" };
  plot(place("k-plot"), (refresh) => [
    choice("show", [["pass@k", "pass@K: any of K correct"], ["maj@k", "maj@K: the most frequent answer of K correct"], ["histogram", "problems by number of correct completions"]], "pass@k", (value) => { state.what = value; refresh(); }),
  ], () => {
    const part = (run, which) => run.kinds[which]?.[state.what];
    const lines = byResult.map(([group, i]) => {
      const found = group.runs.map((r) => part(DATA.runs[r], "final")).filter(Boolean);
      return found.length ? { name: group.label, i, marks: true, ribbon: true, ...mean(found.map(([x, y]) => [x, y]), true), single: found.length === 1 ? found[0] : null } : null;
    }).filter(Boolean).map((one) => (one.single && one.single[2] ? { ...one, low: one.single[2], high: one.single[3] } : one));
    const first = DATA.runs.map((run) => part(run, "base")).find(Boolean); // the base is the same for all
    const base = first ? [{ name: "base", i: 6, marks: true, ribbon: true, x: first[0], y: first[1], low: first[2], high: first[3] }] : [];
    const histogram = state.what === "histogram";
    return { series: [...base, ...lines], options: { xTitle: histogram ? "correct completions of a problem" : "K", yTitle: histogram ? "share of problems (%)" : `${state.what.replace("k", "K")} (%)`, yName: "share", logX: !histogram } };
  });
}

function differences() {
  const home = place("differences");
  if (!DATA.differing.length) { home.append(node("p", { class: "soft" }, "The runs have the same settings, seeds apart.")); return; }
  const values = (key) => {
    const counts = new Map();
    for (const run of DATA.runs) counts.set(run.settings[key] ?? "–", (counts.get(run.settings[key] ?? "–") || 0) + 1);
    return [...counts].sort(([a], [b]) => natural(a, b)).map(([value, count]) => `${value} (${count})`).join(", ");
  };
  const rows = DATA.differing.map((key) => ({ key, values: values(key), follows: !DATA.keys.includes(key) }));
  const columns = [
    { title: "setting", value: (row) => row.key }, { title: "values (runs)", value: (row) => row.values, wrap: true },
    { title: "", value: (row) => (row.follows ? "follows from those above" : "") },
  ];
  home.append(sortable(columns, rows, null, "settings that differ").table);
  const names = DATA.runs.map((run, r) => [String(r), run.name]), state = { a: "0", b: String(Math.min(1, names.length - 1)) }, pair = node("div");
  const show = () => {
    const [a, b] = [DATA.runs[state.a], DATA.runs[state.b]];
    const keys = DATA.differing.concat(["seed"]).filter((key) => (a.settings[key] ?? "–") !== (b.settings[key] ?? "–"));
    const cells = keys.map((key) => ({ key, a: a.settings[key] ?? "–", b: b.settings[key] ?? "–" }));
    pair.replaceChildren(cells.length ? sortable([{ title: "setting", value: (row) => row.key }, { title: "first", value: (row) => row.a, wrap: true }, { title: "second", value: (row) => row.b, wrap: true }], cells, null, "two runs").table : node("p", { class: "soft" }, "These two have the same settings."));
  };
  if (names.length > 1) {
    home.append(node("div", { class: "controls" }, choice("compare", names, state.a, (value) => { state.a = value; show(); }), choice("with", names, state.b, (value) => { state.b = value; show(); })), pair);
    show();
  }
}

function browser() {
  const home = place("browser"), all = DATA.completions;
  if (!all.length) { home.append(node("p", { class: "soft" }, "These runs keep no completions.")); return; }
  const step = 20, state = { run: "", set: "", verdict: "", level: "", words: "", shown: step };
  const list = node("div"), count = node("span", { class: "soft" });
  const distinct = (pick) => [...new Set(all.map(pick))].sort(natural);
  const sets = (entry) => (entry.set === "train" ? `offered for training in iteration ${entry.iteration}` : entry.iteration === 0 ? "test, base" : `test, after iteration ${entry.iteration}`);
  const set = (key) => (value) => { state[key] = value; state.shown = step; show(); };
  const filter = (title, key, pick, name = (value) => value) => choice(title, [["", "all"], ...distinct(pick).map((value) => [String(value), name(value)])], "", set(key));
  function show() {
    const words = state.words.toLowerCase();
    const kept = all.filter((entry) => (!state.run || String(entry.run) === state.run) && (!state.set || sets(entry) === state.set) && (!state.verdict || entry.verdict === state.verdict)
      && (!state.level || String(entry.level ?? "–") === state.level) && (!words || `${entry.question}\n${entry.completion}`.toLowerCase().includes(words)));
    count.textContent = `${kept.length} of ${all.length}`;
    const more = kept.length > state.shown ? node("button", { type: "button", onclick: () => { state.shown += step; show(); } }, `show more (${kept.length - state.shown} left)`) : null;
    list.replaceChildren(...kept.slice(0, state.shown).map(card), ...(more ? [node("div", { class: "controls" }, more)] : []));
  }
  const search = node("input", { type: "search", placeholder: "text", oninput: () => set("words")(search.value) });
  home.append(node("div", { class: "controls" },
    filter("run", "run", (entry) => entry.run, (r) => DATA.runs[r].name), filter("set", "set", sets), filter("verdict", "verdict", (entry) => entry.verdict),
    filter("difficulty", "level", (entry) => entry.level ?? "–"), node("label", {}, "contains", search), count), list);
  if (DATA.left_out) home.prepend(node("p", { class: "soft" }, `${DATA.left_out} more completions are in the run folders (completions.jsonl).`));
  show();

  function card(entry) {
    const places = Object.keys(entry.logp).sort((a, b) => a - b), [before, after] = [entry.logp[places[0]], entry.logp[places[places.length - 1]]];
    const change = places.length > 1 ? `log π ${before.toFixed(2)} before, ${after.toFixed(2)} after; log-ratio 0 before, ${(after - before).toFixed(2)} after` : places.length ? `log π ${after.toFixed(2)}` : "";
    const facts = [DATA.runs[entry.run].name, sets(entry), entry.level !== null && entry.level !== undefined ? `difficulty ${entry.level}` : "", entry.subject || "", `gold ${entry.gold}`, `answer read: ${entry.answer ?? "none"}`, change, entry.truncated ? "cut off at the token limit" : "", entry.trained_on === false ? "not in the training set" : ""];
    return node("div", { class: "card" }, node("div", { class: "meta" }, node("span", { class: `verdict ${entry.verdict}` }, entry.verdict), ...facts.filter(Boolean).map((fact) => node("span", {}, fact))),
      node("pre", { class: "question" }, entry.question), node("pre", { class: "completion" }, entry.completion));
  }
}

header();
for (const section of [overview, runTable, curves, sweep, samples, differences, browser]) section();
document.body.setAttribute("data-ready", String(Math.round(performance.now())));
