"use strict";
// The sections of the report's page; follows parts.js.

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
    }).sort((a, b) => b.x.length - a.x.length); // those with most points are shown at first
    return { series, options: { xTitle: state.x, yTitle: `final ${unit(state.y)}`, yName: state.y } };
  });
}

function samples() {
  if (!DATA.runs.some((run) => run.kinds.final)) { place("k-plot").append(node("p", { class: "soft" }, "No run has been evaluated yet.")); return; }
  const state = { what: "pass@k" };
  plot(place("k-plot"), (refresh) => [
    choice("show", [["pass@k", "pass@K: any of K correct"], ["maj@k", "maj@K: the most frequent answer of K correct"], ["histogram", "problems by number of correct completions"], ["levels", "pass@1 by difficulty"]], "pass@k", (value) => { state.what = value; refresh(); }),
  ], () => {
    const part = (run, which) => run.kinds[which]?.[state.what];
    const lines = byResult.map(([group, i]) => {
      const found = group.runs.map((r) => part(DATA.runs[r], "final")).filter(Boolean);
      return found.length ? { name: group.label, i, marks: true, ribbon: true, ...mean(found.map(([x, y]) => [x, y]), true), single: found.length === 1 ? found[0] : null } : null;
    }).filter(Boolean).map((one) => (one.single && one.single[2] ? { ...one, low: one.single[2], high: one.single[3] } : one));
    const first = DATA.runs.map((run) => part(run, "base")).find(Boolean); // the base is the same for all
    const base = first ? [{ name: "base", i: -1, marks: true, ribbon: true, x: first[0], y: first[1], low: first[2], high: first[3] }] : [];
    const [xTitle, yTitle] = { histogram: ["correct completions of a problem", "share of problems (%)"], levels: ["difficulty", "pass@1 (%)"] }[state.what]
      ?? ["K", `${state.what.replace("k", "K")} (%)`];
    return { series: [...base, ...lines], options: { xTitle, yTitle, yName: "share", logX: xTitle === "K" } };
  });
  const subjects = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.subjects.final)))].sort();
  if (!subjects.length) return;
  const average = (runs, which, subject) => {
    const known = runs.map((r) => DATA.runs[r].subjects[which][subject]).filter(finite);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  };
  const percent = (title, value) => ({ title, number: true, value, text: (subject) => shown(value(subject), "share") });
  place("k-plot").append(node("h3", {}, "pass@1 by subject (%)"), sortable([
    { title: "subject", value: (subject) => subject },
    percent("base", (subject) => average(DATA.runs.map((_, r) => r), "base", subject)),
    ...byResult.slice(0, SHOWN_AT_FIRST).map(([group]) => percent(group.label, (subject) => average(group.runs, "final", subject))),
  ], subjects, null, "subjects").table);
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
