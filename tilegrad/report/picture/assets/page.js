"use strict";
const record = JSON.parse(document.getElementById("record").textContent);
const $ = (id) => document.getElementById(id);
const count = (n) => (n === null || n === undefined ? "-" : Math.round(n).toLocaleString("en-US"));
const number = (x) => (x === null || x === undefined ? "-" : typeof x === "string" ? x : Number(x).toPrecision(4));
const share = (x) => (x === null || x === undefined ? "-" : `${Math.round(100 * x)} %`);
function bytes(n) {
  if (n === null || n === undefined) return "-";
  for (const [unit, size] of [["GiB", 1 << 30], ["MiB", 1 << 20], ["KiB", 1 << 10]])
    if (n >= size) return `${(n / size).toPrecision(3)} ${unit}`;
  return `${n} B`;
}
function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

let mode = record.modes.length - 1;
let entry = "step";
const shown = () => record.modes[mode];

// ---- result

const OUTCOMES = { verified: "good", disagrees: "bad", diverged: "bad", inconclusive: "warn" };
// What is drawn is estimated, whatever was measured; and where a chip has no evidence, it says so.
const estimates = (mode = shown()) => mode.estimates_are ?? "estimated";
const cyclesAre = (mode) => (/^estimated/.test(mode.run.cycles_are) ? estimates(mode) : mode.run.cycles_are || "");
function showResult() {
  const run = shown().run;
  const outcome = run.verdict;
  $("verdict").className = OUTCOMES[outcome] || "warn";
  $("verdict").textContent = outcome ? `${outcome} against ${run.reference}` : "not verified";
  const word = cyclesAre(shown());
  const rows = [
    ["Loss", run.losses.length ? `${number(run.losses[0])} → ${number(run.losses[run.losses.length - 1])}` : "-", ""],
    ["Cycles of a step", count(run.cycles.step), word],
    ["Cycles of an update", count(run.cycles.update), word],
    ["MAC per cycle", run.macs_per_cycle === null ? "-" : run.macs_per_cycle.toFixed(2), `${count(run.macs_per_step)} MACs`],
    ["Parameters that train", count(run.trainable_params), `of ${count(run.params)}`],
  ];
  if (run.learning) {
    const { before, after, of } = run.learning;
    rows.splice(1, 0, [`Loss (${of} samples)`, `${number(before.loss)} → ${number(after.loss)}`, ""]);
    if (after.accuracy !== null)
      rows.splice(2, 0, [`Accuracy (${of} samples)`, `${percent(before.accuracy)} → ${percent(after.accuracy)}`, `of ${count(after.samples)}`]);
  }
  for (const [level, use] of Object.entries(run.memory))
    rows.push([level, bytes(use.used), use.capacity === null ? "" : `of ${bytes(use.capacity)}, bound ${bytes(use.lower_bound)}`]);
  for (const [hop, one] of Object.entries(shown().hops))
    rows.push([`${hop} traffic of a step`, bytes(one.bytes), one.hidden === null ? "" : `${share(one.hidden)} hidden, ${estimates()}`]);
  $("figures").replaceChildren(...rows.map(([term, value, more]) =>
    make("div", {}, make("dt", { textContent: term }), make("dd", {}, value, more ? make("small", { textContent: ` ${more}` }) : ""))));
}

const percent = (value) => `${(100 * value).toFixed(2)} %`;
function showLearning() {
  const { learning } = shown().run;
  $("learning").replaceChildren();
  if (!learning) return;
  const measures = [["before", learning.before], ...learning.epochs.map((one) => [`epoch ${one.epoch}`, one]), ["after", learning.after]];
  const heads = [`measured on ${learning.of} samples`, "loss", ...(learning.after.accuracy === null ? [] : ["accuracy"]),
    ...Object.keys(learning.after.top).map((k) => `top ${k}`), ...(learning.after.mean_error === null ? [] : ["mean error"])];
  const cells = ([name, one]) => [name, number(one.loss), ...(learning.after.accuracy === null ? [] : [percent(one.accuracy)]),
    ...Object.keys(learning.after.top).map((k) => percent(one.top[k])), ...(learning.after.mean_error === null ? [] : [number(one.mean_error)])];
  $("learning").append(make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((head, i) => make("th", { textContent: head, scope: "col", className: i ? "" : "text" })))),
    make("tbody", {}, ...measures.map((one) => make("tr", {}, ...cells(one).map((text, i) =>
      make("td", { textContent: text, className: i ? "" : "text" })))))));
}

function showModes() {
  if (record.modes.length + record.left_out.length < 2) return;
  const word = record.modes.length ? cyclesAre(record.modes[0]) : "estimated";
  const heads = ["mode", `step cycles, ${word}`, `update cycles, ${word}`, "MAC/cycle", "L1", "L2", "verdict"];
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((head, i) =>
    make("th", { textContent: head, scope: "col", className: i ? "" : "text" })))));
  const body = make("tbody");
  for (const one of record.modes) {
    const cells = [one.mode, count(one.run.cycles.step), count(one.run.cycles.update), one.run.macs_per_cycle?.toFixed(2) ?? "-",
      bytes(one.run.memory.L1?.used), bytes(one.run.memory.L2?.used), one.run.verdict ?? "-"];
    body.append(make("tr", {}, ...cells.map((text, i) => make("td", { textContent: text, className: i ? "" : "text" }))));
  }
  for (const one of record.left_out)
    body.append(make("tr", {}, make("td", { textContent: one.mode, className: "text" }),
      make("td", { textContent: one.reason, className: "text", colSpan: heads.length - 1 })));
  table.append(body);
  $("modes").replaceChildren(table);
}

// ---- loss

let chart = null;
function showLoss() {
  const run = shown().run;
  showLearning();
  $("s-loss").hidden = run.losses.length < 2;
  if (run.losses.length < 2) return;
  const plain = (values) => (values || []).map((value) => (typeof value === "number" ? value : null));
  const reference = plain(run.reference_losses);
  const data = [run.losses.map((_, i) => i + 1), plain(run.losses)];
  const axis = { stroke: colour("ink"), grid: { stroke: colour("line") }, ticks: { stroke: colour("line") } };
  const series = [{ label: "mini-batch" }, { label: "loss", stroke: colour("compute"), width: 2 }];
  if (reference.length === run.losses.length) {
    data.push(reference);
    series.push({ label: "reference", stroke: colour("store"), width: 1.5, dash: [6, 4] });
  }
  if (chart) chart.destroy();
  $("loss").replaceChildren();
  chart = new uPlot({ width: $("loss").clientWidth, height: 260, series, axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000] }, axis], scales: { x: { time: false } } }, data, $("loss"));
  $("loss-note").textContent = `Largest relative error of a loss: ${number(run.max_loss_error)}.`;
}

// ---- canvases: one coordinate system of cycles, shared by nothing but this code

function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return [context, width, height];
}
function ticks(low, high, most) {
  const raw = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}
function timeAxis(context, view, left, width, height, unit) {
  context.fillStyle = colour("dim");
  context.strokeStyle = colour("line");
  context.textAlign = "center";
  for (const at of ticks(view.from, view.to, Math.max(2, width / 140))) {
    const x = left + ((at - view.from) / (view.to - view.from)) * (width - left);
    context.fillText(count(at), x, height - 5);
    context.beginPath(); context.moveTo(x, 0); context.lineTo(x, height - 18); context.stroke();
  }
  context.textAlign = "right";
  context.fillText(unit === "cycles" ? `cycles, ${estimates()}` : unit, width - 4, height - 19);
}

// ---- memory: time across, address up

const view = { from: 0, to: 1 };
let memoryHits = [];
function showMemory() {
  const own = shown().memory[entry];
  $("s-memory").hidden = !own;
  if (!own) return;
  const level = own.levels[$("level").value] ? $("level").value : Object.keys(own.levels)[0];
  const one = own.levels[level];
  const [context, width, height] = prepare($("memory"));
  const left = 70, bottom = height - 18;
  const most = Math.max(one.used, one.lower_bound, 1);
  const window_ = own.unit === "cycles" ? view : { from: 0, to: own.end };
  const x = (time) => left + ((time - window_.from) / (window_.to - window_.from)) * (width - left);
  const y = (address) => bottom - (address / (most * 1.06)) * bottom;
  timeAxis(context, window_, left, width, height, own.unit);
  memoryHits = [];
  context.save();
  context.beginPath(); context.rect(left, 0, width - left, bottom); context.clip();
  for (const [kind, name, operator, offset, size, start, stop, first, last] of one.buffers) {
    if (stop < window_.from || start > window_.to) continue;
    const box = [x(start), y(offset + size), Math.max(1, x(stop) - x(start)), Math.max(1, y(offset) - y(offset + size))];
    context.fillStyle = colour(kind);
    context.globalAlpha = 0.75;
    context.fillRect(...box);
    context.globalAlpha = 1;
    context.strokeStyle = colour("paper");
    if (box[2] > 2 && box[3] > 2) context.strokeRect(...box);
    memoryHits.push([box, `${name}: ${bytes(size)} at ${level}+${offset}, launches ${first} to ${last}` + (operator ? `, ${operator}` : "")]);
  }
  context.restore();
  context.strokeStyle = colour("wait");
  context.setLineDash([6, 4]);
  context.beginPath(); context.moveTo(left, y(one.lower_bound)); context.lineTo(width, y(one.lower_bound)); context.stroke();
  context.setLineDash([]);
  context.fillStyle = colour("dim");
  context.textAlign = "right";
  for (const at of ticks(0, most, 6)) context.fillText(bytes(at), left - 6, y(at) + 4);
  const text = `${level}: ${bytes(one.used)} used, lower bound ${bytes(one.lower_bound)} (dashed)`
    + (one.capacity === null ? "" : `, ${bytes(one.capacity)} there are`) + `; ${one.buffers.length} buffers.`;
  $("memory").setAttribute("aria-label", text);
  $("memory-text").textContent = text;
}

// ---- timeline: queues down, cycles across

const ROW = 30;
let timelineStats = { drawn: 0, milliseconds: 0 };
function showTimeline() {
  const own = shown().timeline[entry];
  $("s-timeline").hidden = !own;
  if (!own) return;
  const began = performance.now();
  $("timeline").style.height = `${own.tracks.length * ROW + 26}px`;
  const [context, width, height] = prepare($("timeline"));
  const left = 90;
  timeAxis(context, view, left, width, height, "cycles");
  const scale = (width - left) / (view.to - view.from);
  context.fillStyle = colour("ink");
  context.textAlign = "right";
  own.tracks.forEach((track, i) => context.fillText(track, left - 8, i * ROW + 19));
  const colours = own.kinds.map(colour);
  const reach = own.tracks.map(() => -1);
  context.save();
  context.beginPath(); context.rect(left, 0, width - left, height - 20); context.clip();
  let drawn = 0;
  for (let i = 0; i < own.start.length; i++) {
    if (own.end[i] < view.from || own.start[i] > view.to) continue;
    const track = own.track[i];
    const x0 = left + (own.start[i] - view.from) * scale;
    const x1 = Math.max(x0 + 0.7, left + (own.end[i] - view.from) * scale);
    if (x1 - reach[track] < 0.5) continue; // nothing of it would be seen
    reach[track] = x1;
    context.fillStyle = colours[own.kind[i]];
    context.fillRect(x0, track * ROW + 4, x1 - x0, ROW - 8);
    drawn++;
    if (x1 - x0 > 60) {
      context.fillStyle = colour("paper");
      context.textAlign = "left";
      const label = own.names[own.name[i]];
      const room = Math.floor((Math.min(x1, width) - Math.max(x0, left) - 8) / 7);
      if (room > 3) context.fillText(label.length > room ? `${label.slice(0, room - 1)}…` : label, Math.max(x0, left) + 4, track * ROW + 20);
    }
  }
  context.restore();
  timelineStats = { drawn, milliseconds: performance.now() - began };
  const text = `${count(own.start.length)} events of ${entry} in ${count(own.cycles)} cycles (${estimates()}); shown ${count(view.from)} to ${count(view.to)}.`;
  $("timeline").setAttribute("aria-label", text);
  $("timeline-text").textContent = text;
}
function sliceAt(x, y) {
  const own = shown().timeline[entry];
  const left = 90;
  const time = view.from + ((x - left) / ($("timeline").clientWidth - left)) * (view.to - view.from);
  const track = Math.floor(y / ROW);
  const slack = (2 * (view.to - view.from)) / $("timeline").clientWidth;
  let best = -1;
  for (let i = 0; i < own.start.length; i++)
    if (own.track[i] === track && own.start[i] - slack <= time && time <= own.end[i] + slack) best = i;
  return best;
}
function tellSlice(i) {
  const own = shown().timeline[entry];
  if (i < 0) return;
  const nest = own.nest[i] < 0 ? "" : ` of ${own.nests[own.nest[i]]}`;
  const tile = own.tile[i] < 0 ? "" : `, tile ${own.tile[i]}`;
  const size = own.bytes[i] ? `, ${bytes(own.bytes[i])}` : "";
  $("timeline-text").textContent = `${own.kinds[own.kind[i]]}: ${own.names[own.name[i]]}${nest}${tile}${size}; `
    + `cycles ${count(own.start[i])} to ${count(own.end[i])} (${count(own.end[i] - own.start[i])}).`;
}
function whole() {
  const own = shown().timeline[entry];
  view.from = 0;
  view.to = own ? own.cycles : shown().memory[entry]?.end ?? 1;
}
function look(from, to) {
  const end = shown().timeline[entry]?.cycles ?? 1;
  const size = Math.min(Math.max(to - from, 20), end);
  view.from = Math.min(Math.max(0, from), end - size);
  view.to = view.from + size;
  showTimeline();
  showMemory();
}
function zoom(factor, at = (view.from + view.to) / 2) {
  look(at - (at - view.from) * factor, at + (view.to - at) * factor);
}
function pan(part) {
  const size = view.to - view.from;
  look(view.from + part * size, view.to + part * size);
}

// ---- operators

const COLUMNS = [
  ["node", "node", true], ["op", "operator", true], ["kernel", "kernel", true], ["macs", "MACs"], ["tile", "tile", true],
  ["tiles", "tiles"], ["footprint_bytes", "footprint"], ["traffic_bytes", "traffic"], ["cycles", "cycles"], ["share", "share"],
  ["bound", "bound by", true], ["macs_per_cycle", "MAC/cycle"],
];
let order = ["", 1];
function cell(row, key) {
  if (key === "share") return row.share === null ? "-" : `${(100 * row.share).toFixed(1)} %`;
  if (key === "macs_per_cycle") return row.macs_per_cycle === null ? "-" : row.macs_per_cycle.toFixed(2);
  if (key.endsWith("_bytes")) return bytes(row[key]);
  return typeof row[key] === "number" ? count(row[key]) : row[key] ?? "-";
}
function showOperators() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  let rows = shown().operators.filter((row) => {
    const text = `${row.entry} ${row.node} ${row.op} ${row.kernel} ${row.bound} ${row.tile}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const [key, way] = order;
  if (key) rows = [...rows].sort((a, b) => way * (a[key] > b[key] ? 1 : a[key] < b[key] ? -1 : 0));
  const head = make("tr", {}, ...COLUMNS.map(([name, title, text]) => {
    const button = make("button", { type: "button", textContent: title + (name === "cycles" ? `, ${estimates()}` : "") + (name === key ? (way > 0 ? " ↑" : " ↓") : "") });
    button.onclick = () => { order = [name, name === key ? -way : text ? 1 : -1]; showOperators(); };
    const column = make("th", { scope: "col", className: text ? "text" : "" }, button);
    column.setAttribute("aria-sort", name === key ? (way > 0 ? "ascending" : "descending") : "none");
    return column;
  }));
  const body = rows.map((row) => make("tr", {}, ...COLUMNS.map(([name, , text]) => {
    if (name !== "node") return make("td", { className: text ? "text" : "", textContent: cell(row, name) });
    const button = make("button", { type: "button", textContent: row.node });
    button.onclick = () => showCode(row);
    return make("td", { className: "text" }, button);
  })));
  $("operators").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
  $("shown").textContent = `${rows.length} of ${shown().operators.length} nests, in order of execution unless sorted`
    + (shown().entries.step ? `; ${count(shown().entries.step.before_first_cycles)} cycles of a step pass before its first nest` : "");
}
function showCode(row) {
  $("code-title").textContent = `${row.op} ${row.node}`;
  const kernel = record.code.kernels[row.kernel] || "";
  $("code-text").textContent = `${record.code.nodes[row.node] || "/* No code: it takes no time. */\n"}\n/* kernels: tg_${row.kernel} */\n${kernel}`;
  $("code").showModal();
}

// ---- roofline: both axes logarithmic

let roofHits = [];
function showRoofline() {
  const roof = shown().roofline;
  const rows = shown().operators.filter((row) => row.macs > 0 && row.traffic_bytes > 0 && row.cycles);
  $("s-roofline").hidden = !roof || !rows.length;
  if (!roof || !rows.length) return;
  const [context, width, height] = prepare($("roofline"));
  const left = 60, bottom = height - 34;
  const points = rows.map((row) => [row.macs / row.traffic_bytes, row.macs_per_cycle, row]);
  const lowX = Math.min(0.05, ...points.map((p) => p[0])), highX = Math.max(100, ...points.map((p) => p[0]));
  const lowY = Math.min(0.02, ...points.map((p) => p[1])), highY = roof.macs_per_cycle * 1.5;
  const x = (v) => left + (Math.log(v / lowX) / Math.log(highX / lowX)) * (width - left - 10);
  const y = (v) => bottom - (Math.log(v / lowY) / Math.log(highY / lowY)) * (bottom - 8);
  context.strokeStyle = colour("line");
  context.fillStyle = colour("dim");
  for (let power = Math.ceil(Math.log10(lowX)); 10 ** power <= highX; power++) {
    context.textAlign = "center";
    context.fillText(String(10 ** power), x(10 ** power), bottom + 15);
    context.beginPath(); context.moveTo(x(10 ** power), 0); context.lineTo(x(10 ** power), bottom); context.stroke();
  }
  for (let power = Math.ceil(Math.log10(lowY)); 10 ** power <= highY; power++) {
    context.textAlign = "right";
    context.fillText(String(10 ** power), left - 6, y(10 ** power) + 4);
    context.beginPath(); context.moveTo(left, y(10 ** power)); context.lineTo(width, y(10 ** power)); context.stroke();
  }
  context.textAlign = "right";
  context.fillText(`MAC per byte over ${roof.hop}`, width - 10, height - 4);
  context.textAlign = "left";
  context.fillText("MAC per cycle", left + 6, 14);
  context.strokeStyle = colour("ink");
  context.lineWidth = 2;
  const knee = roof.macs_per_cycle / roof.bytes_per_cycle;
  context.beginPath();
  context.moveTo(x(lowX), y(Math.max(lowY, lowX * roof.bytes_per_cycle)));
  context.lineTo(x(knee), y(roof.macs_per_cycle));
  context.lineTo(x(highX), y(roof.macs_per_cycle));
  context.stroke();
  context.lineWidth = 1;
  roofHits = [];
  for (const [intensity, rate, row] of points) {
    const radius = 3 + 14 * Math.sqrt(row.share || 0);
    context.fillStyle = colour(row.bound === "DMA" ? "store" : "compute");
    context.globalAlpha = 0.7;
    context.beginPath(); context.arc(x(intensity), y(Math.max(rate, lowY)), radius, 0, 7); context.fill();
    context.globalAlpha = 1;
    roofHits.push([x(intensity), y(Math.max(rate, lowY)), radius + 2, row, intensity]);
  }
  const text = `Each circle is a nest with multiply-adds; its size is its share of the cycles (${estimates()}). Roofs: ${roof.macs_per_cycle} MAC/cycle, ${roof.bytes_per_cycle} bytes/cycle.`;
  $("roofline").setAttribute("aria-label", text);
  $("roofline-text").textContent = text;
}

// ---- the model, forward and gradient side by side

function showGraph() {
  const host = $("graph");
  host.replaceChildren();
  const find = (name) => { $("filter").value = name; showOperators(); $("operators").scrollIntoView({ block: "nearest" }); $("filter").focus(); };
  const box = (nodes, name) => make("div", { className: "cell" }, ...nodes.map((node) => {
    const button = make("button", { type: "button", className: "node", textContent: node.op });
    button.onclick = () => find(node.node);
    return make("div", {}, button, make("small", { textContent: `${node.node} → ${node.types.join(", ")}` }));
  }), nodes.length ? "" : make("small", { textContent: name }));
  const rows = record.graph.rows.map((row) => {
    const first = make("div");
    host.append(first, box(row.forward, row.name), box(row.gradient, "no gradient"));
    return first;
  });
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  host.append(svg);
  const draw = () => {
    svg.setAttribute("width", 70);
    svg.setAttribute("height", host.scrollHeight);
    svg.replaceChildren();
    const gutter = rows.length ? rows[0].offsetWidth : 60;
    const middle = (i) => rows[i].offsetTop + rows[i].offsetHeight / 2;
    for (const [from, to] of record.graph.edges) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      const far = Math.max(2, gutter - 8 - Math.min(gutter - 10, 6 * Math.abs(to - from)));
      path.setAttribute("d", `M${gutter + 8},${middle(from)} C${far},${middle(from)} ${far},${middle(to)} ${gutter + 8},${middle(to)}`);
      path.setAttribute("fill", "none");
      path.setAttribute("stroke", colour("dim"));
      svg.append(path);
    }
  };
  draw();
  window.addEventListener("resize", draw);
}

// ---- what people do

function showAll() { showResult(); showLoss(); showMemory(); showTimeline(); showOperators(); showRoofline(); }
function options(select, names, chosen) {
  select.replaceChildren(...names.map((name, i) => make("option", { textContent: name, value: String(name), selected: i === chosen })));
}
function showLevels() {
  const levels = Object.keys(shown().memory[entry]?.levels ?? {});
  options($("level"), levels, Math.max(0, levels.indexOf("L2")));
}
function showEntries() {
  const names = Object.keys(shown().memory).filter((name) => !Object.keys(shown().timeline).length || shown().timeline[name]);
  if (!names.includes(entry)) entry = names.includes("step") ? "step" : names[0] ?? "step";
  $("entry-label").hidden = names.length < 2;
  options($("entry"), names, names.indexOf(entry));
}
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light theme" : "Dark theme";
  showAll();
}
function start() {
  $("title").textContent = record.title;
  const run = shown().run;
  $("subtitle").textContent = `loss ${run.loss}, ${run.optimizer} lr ${run.lr}, batch ${run.batch}, ${run.steps} updates of ${run.accum} mini-batches; target ${run.target}`;
  $("footer").textContent = `Written by tilegrad ${record.tilegrad}. Weights ${run.weights_sha256 ?? "-"}.`;
  $("mode-label").hidden = record.modes.length < 2;
  options($("mode"), record.modes.map((one) => one.mode), mode);
  $("legend").replaceChildren(...["compute", "load", "store", "table", "fetch", "evict", "wait"].map((kind) => {
    const mark = make("i");
    mark.style.background = `var(--${kind})`;
    return make("span", { className: "key" }, mark, kind);
  }));
  showEntries();
  showLevels();
  whole();
  showModes();
  setTheme(window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  showGraph();

  $("theme").onclick = () => { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); showGraph(); };
  $("mode").onchange = (event) => { mode = event.target.selectedIndex; showEntries(); showLevels(); whole(); showAll(); };
  $("entry").onchange = (event) => { entry = event.target.value; showLevels(); whole(); showAll(); };
  $("level").onchange = showMemory;
  $("filter").oninput = showOperators;
  $("zoom-in").onclick = () => zoom(0.5);
  $("zoom-out").onclick = () => zoom(2);
  $("zoom-all").onclick = () => { whole(); look(view.from, view.to); };
  for (const canvas of [$("timeline"), $("memory")]) {
    canvas.onkeydown = (event) => {
      const does = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => $("zoom-all").click() };
      if (does[event.key]) { does[event.key](); event.preventDefault(); }
    };
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX) && document.activeElement !== canvas) return;
      event.preventDefault();
      const left = canvas.id === "timeline" ? 90 : 70;
      const at = view.from + ((event.offsetX - left) / (canvas.clientWidth - left)) * (view.to - view.from);
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(0.001 * (event.deltaX || event.deltaY));
      else zoom(Math.exp(0.002 * event.deltaY), at);
    }, { passive: false });
    let held = null;
    canvas.onpointerdown = (event) => { held = [event.offsetX, view.from, view.to]; canvas.setPointerCapture(event.pointerId); };
    canvas.onpointerup = () => { held = null; };
    canvas.addEventListener("pointermove", (event) => {
      if (!held) return;
      const size = held[2] - held[1];
      const moved = ((event.offsetX - held[0]) / canvas.clientWidth) * size;
      look(held[1] - moved, held[2] - moved);
    });
  }
  $("timeline").addEventListener("pointermove", (event) => { if (!event.buttons) tellSlice(sliceAt(event.offsetX, event.offsetY)); });
  $("memory").addEventListener("pointermove", (event) => {
    const { offsetX: x, offsetY: y } = event;
    const found = memoryHits.filter(([[bx, by, w, h]]) => bx <= x && x <= bx + w && by <= y && y <= by + h).pop();
    if (found && !event.buttons) $("memory-text").textContent = found[1];
  });
  $("roofline").addEventListener("pointermove", (event) => {
    const found = roofHits.filter(([x, y, r]) => Math.hypot(event.offsetX - x, event.offsetY - y) <= r).pop();
    if (found) $("roofline-text").textContent = `${found[3].op} ${found[3].node} (${found[3].kernel}): ${found[4].toPrecision(3)} MAC/byte, ${found[3].macs_per_cycle.toFixed(2)} MAC/cycle, ${(100 * found[3].share).toFixed(1)} % of the cycles.`;
  });
  window.addEventListener("resize", () => { showLoss(); showMemory(); showTimeline(); showRoofline(); });
}
start();
