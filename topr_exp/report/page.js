"use strict";
// The sections of the report's page; follows parts.js.

// ---- sections

const same = (names) => names.map((name) => [name, name]);

function header() {
  const count = (status) => DATA.runs.filter((run) => run.status === status).length;
  const states = [...new Set(DATA.runs.map((run) => run.status))].map((status) => `${count(status)} ${status}`);
  place("title").append(DATA.title);
  document.title = DATA.title;
  const differs = DATA.keys.length ? `; they differ in ${DATA.keys.join(", ")}` : "";
  place("subtitle").append(`${DATA.runs.length} run${DATA.runs.length === 1 ? "" : "s"} (${states.join(", ")}) in ${DATA.groups.length} group${DATA.groups.length === 1 ? "" : "s"}${differs}. Made ${DATA.made}.`);
}

function result() {
  const { sentence, of, minus, rows } = DATA.ranking, home = place("ranking");
  home.append(node("p", {}, node("strong", {}, sentence)));
  if (!rows.length) return;
  const columns = [
    { title: of, value: (row) => row.label, wrap: true },
    { title: "runs", value: (row) => row.runs, number: true },
    { title: of === "group" ? "final pass@1 %" : "pass@1 %", value: (row) => row.mean, hint: "mean with its 95 % interval, over runs and test problems; of a single run over test problems" },
  ];
  if (rows.some((row) => row.reward)) columns.push({ title: "mean reward", value: (row) => row.reward, hint: "as the grader gives it, with its 95 % interval" });
  if (rows.some((row) => row.minus)) columns.push(
    { title: `minus ${minus}`, value: (row) => row.minus, hint: "paired by seed and test problem, with its 95 % interval" },
    { title: "over", value: (row) => row.over, hint: "what the interval of the difference is over" },
  );
  home.append(sortable(columns, rows, null, "result").table);
}

function overview() {
  const notes = DATA.runs.flatMap((run) => run.notes.map((note) => `${run.name}: ${note}`)).concat(DATA.notes);
  if (notes.length) place("notes").append(node("details", { class: "notes", open: notes.length < 6 }, node("summary", {}, `${notes.length} note${notes.length === 1 ? "" : "s"} about these folders`), node("ul", {}, ...notes.map((note) => node("li", {}, note)))));
  place("facts").append(...Object.entries(DATA.facts).map(([title, words]) => node("p", {}, node("strong", {}, `${title}: `), words)));
  const columns = [
    { title: "group", value: (group) => group.label, wrap: true },
    { title: "runs", value: (group) => group.runs, number: true },
    ...results("mean of the group's finished runs with its 95 % interval"),
  ];
  const start = { column: columns.findIndex((column) => column.title === "final pass@1 %"), up: false };
  place("groups").append(sortable(columns, DATA.groups, start, "groups").table,
    node("p", { class: "soft" }, "In brackets: 95 % intervals, over runs and test problems (crossed random effects); of a single run over test problems, which leaves out how training runs vary. Where verdicts are gone: Student's t over runs."));
}

// Columns of the figures before and after training, each [value, as it is printed].
function results(hint) {
  return ["final", "base"].flatMap((part) => DATA.headlines.map((name) => ({
    title: `${part} ${name === "mean_reward" ? "mean reward" : `${name} %`}`, number: true, value: (row) => row[part][name]?.[0], text: (row) => row[part][name]?.[1] ?? "–", hint,
  })));
}

function runTable() {
  const value = (name) => (run) => run.values[name];
  const columns = [
    { title: "run", value: (run) => run.name },
    { title: "status", value: (run) => run.status },
    ...DATA.keys.map((key) => ({ title: key, value: (run) => run.settings[key] })),
    { title: "seed", number: true, value: value("seed"), text: (run) => shown(run.values.seed) },
    ...results("95 % interval over test problems"),
    ...["baseline", "effective_positive", "positive_share", "n_train", "updates"].filter((name) => DATA.runs.some((run) => finite(run.values[name])))
      .filter((name) => !DATA.keys.includes(name)).map((name) => ({ title: name, number: true, value: value(name), text: (run) => shown(run.values[name]) })),
    { title: "seconds", number: true, value: value("seconds"), text: (run) => shown(run.values.seconds === null ? null : Math.round(run.values.seconds)) },
  ];
  const made = sortable(columns, DATA.runs, null, "runs");
  const words = (run) => [run.name, run.status, run.label, ...Object.entries(run.settings).map(([key, one]) => `${key}=${one}`)].join(" ").toLowerCase();
  const input = node("input", { type: "search", placeholder: "words, as in topr seed=1", oninput: () => {
    const asked = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    made.filter((run) => asked.every((word) => words(run).includes(word)));
  } });
  place("run-table").append(node("div", { class: "controls" }, node("label", {}, "filter", input)), made.table);
}

function nothing(id, words) {
  place(id).append(node("p", { class: "soft" }, words));
}

function curves() {
  const titles = Object.keys(DATA.curves);
  if (!titles.length) return nothing("curve-plot", "No run has logged anything yet.");
  const state = { show: ["test: pass@1", "training: loss", titles[0]].find((title) => DATA.curves[title]), against: "x", lines: "lines" };
  const choices = {
    show: same(titles), against: [["x", "optimizer steps"], ["samples", "samples seen"]],
    lines: [["lines", "groups: mean, 95 % interval (of two: range)"], ["runs", "single runs"]],
  };
  plot(place("curve-plot"), state, choices, () => {
    const made = DATA.curves[state.show];
    const lines = made[state.lines].map((one) => ({ ...one, x: one[state.against] }));
    return { ...made, lines, x_title: state.against === "x" ? made.x_title : "samples seen" };
  });
}

function sweep() {
  const axes = Object.keys(DATA.sweeps);
  if (!axes.length) return nothing("sweep-plot", "Nothing numeric differs between these runs.");
  const figures = Object.keys(DATA.sweeps[axes[0]]), state = { against: axes[0], show: figures[0] };
  plot(place("sweep-plot"), state, { against: same(axes), show: same(figures) }, () => DATA.sweeps[state.against][state.show]);
}

function samples() {
  const titles = Object.keys(DATA.kinds), state = { show: titles[0] };
  if (!titles.some((title) => DATA.kinds[title].lines.length)) return nothing("k-plot", "No run has been evaluated yet.");
  plot(place("k-plot"), state, { show: same(titles) }, () => DATA.kinds[state.show]);
  const columns = Object.entries(DATA.subjects), subjects = [...new Set(columns.flatMap(([, values]) => Object.keys(values)))].sort();
  if (!subjects.length) return;
  place("k-plot").append(node("h3", {}, "pass@1 by subject (%)"), sortable([
    { title: "subject", value: (subject) => subject },
    ...columns.slice(0, SHOWN_AT_FIRST + 1).map(([title, values]) => ({ title, number: true, value: (subject) => values[subject], text: (subject) => shown(values[subject], true) })),
  ], subjects, null, "subjects").table);
}

function differences() {
  const home = place("differences");
  const fixed = [{ title: "setting", value: ([key]) => key }, { title: "value", value: ([, value]) => value, wrap: true }];
  place("fixed").append(node("details", {}, node("summary", {}, "settings that all runs share"), sortable(fixed, Object.entries(DATA.fixed), null, "settings that all share").table));
  if (!DATA.differing.length) { home.append(node("p", { class: "soft" }, "The runs have the same settings, seeds apart.")); return; }
  const values = (key) => {
    const counts = new Map();
    for (const run of DATA.runs) counts.set(run.settings[key] ?? "–", (counts.get(run.settings[key] ?? "–") || 0) + 1);
    return [...counts].sort(([a], [b]) => natural(a, b)).map(([value, count]) => `${value} (${count})`).join(", ");
  };
  const rows = DATA.differing.map((key) => ({ key, values: values(key), section: `${key.split(".")[0]}.name` }));
  const columns = [
    { title: "setting", value: (row) => row.key }, { title: "values (runs)", value: (row) => row.values, wrap: true },
    { title: "", value: (row) => (DATA.keys.includes(row.key) ? "" : DATA.keys.includes(row.section) ? `comes with ${row.section}` : "also differs") },
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
for (const section of [result, curves, overview, runTable, sweep, samples, differences, browser]) section();
document.body.setAttribute("data-ready", String(Math.round(performance.now())));
