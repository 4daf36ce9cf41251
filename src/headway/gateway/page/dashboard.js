// Asks the gateway for its state every second and shows it. Whatever comes from clients is set as text, never as markup.

const EVERY_MS = 1000;
const PATIENCE_MS = 3000;
const STATE = new URL("dashboard/state", location.origin + location.pathname); // without the key that the page's may hold
const KIND = { ready: "good", starting: "calm", draining: "calm", stopped: "calm", unwell: "warn", lost: "bad" };
const DASH = "–";
const GOOD = 0.9; // a smaller share of requests in time is marked

const at = (id) => document.getElementById(id);
const counted = (number, one, many = `${one}s`) => `${whole(number)} ${number === 1 ? one : many}`;
const whole = (number) => number.toLocaleString("en", { maximumFractionDigits: 0 });
const rate = (number) => number.toLocaleString("en", { maximumFractionDigits: number < 10 ? 1 : 0 });
const share = (part) => (part === null ? DASH : `${(part * 100).toFixed(part === 1 ? 0 : 1)} %`);
const time = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

function lasting(seconds) {
  if (seconds === null) return DASH;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function made(tag, kind = "", text = "") {
  const node = document.createElement(tag);
  node.className = kind;
  node.textContent = text;
  return node;
}

// Children of `parent`, one an item, kept by key, so that focus and scrolling survive a refresh.
function keep(parent, items, keyOf, make, show) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const key = keyOf(item);
    const node = old.get(key) ?? make(item);
    old.delete(key);
    node.dataset.key = key;
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
    show(node, item);
  });
  while (parent.children.length > items.length) parent.lastChild.remove();
}

// A cell is a text, a number (0 is faint), or a function that fills the element.
function table(id, items, keyOf, cells) {
  const make = (item) => {
    const row = document.createElement("tr");
    cells(item).forEach((_, column) => row.append(column ? document.createElement("td") : made("th")));
    row.firstChild.scope = "row";
    return row;
  };
  keep(at(id), items, keyOf, make, (row, item) => cells(item).forEach((cell, column) => {
    const element = row.children[column];
    if (typeof cell === "function") return cell(element);
    element.classList.toggle("zero", cell === 0 || cell === DASH);
    put(element, typeof cell === "number" ? whole(cell) : cell);
  }));
}

// In place of a table or list without items stands a sentence.
function empty(id, items) {
  at(`no-${id}`).hidden = items.length > 0;
  (at(id).closest(".scroll") ?? at(id)).hidden = items.length === 0;
}

const timely = (part) => (element) => {
  element.classList.toggle("low", part !== null && part < GOOD);
  put(element, share(part));
};

const text = (value, kind = "") => (element) => {
  element.className = `text ${kind}`;
  element.title = value;
  put(element, value);
};

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
  return node;
}

// A line of values from 0 to `top`; null leaves a gap. `mark` is a dashed line at that value.
function spark(element, values, top, says, mark = null) {
  const told = JSON.stringify([values, top]);
  if (element.dataset.told === told) return;
  element.dataset.told = told;
  const height = (value) => 20 - (18 * Math.min(value, top)) / top;
  const chart = svg("svg", { viewBox: "0 0 120 20", preserveAspectRatio: "none", role: "img", "aria-label": says });
  if (mark !== null) chart.append(svg("line", { class: "mark", x1: 0, x2: 120, y1: height(mark), y2: height(mark) }));
  for (const run of runs(values)) {
    const points = run.map(([step, value]) => `${((step + 0.5) * 120) / values.length},${height(value).toFixed(2)}`);
    const [first, last] = [points[0].split(",")[0], points.at(-1).split(",")[0]];
    chart.append(svg("polygon", { class: "area", points: `${first},20 ${points.join(" ")} ${last},20` }));
    chart.append(svg("polyline", { class: "line", points: points.length > 1 ? points.join(" ") : `${points} ${points}` }));
  }
  element.replaceChildren(chart);
}

function runs(values) {
  const found = [];
  values.forEach((value, step) => {
    if (value === null) return;
    if (step === 0 || values[step - 1] === null) found.push([]);
    found.at(-1).push([step, value]);
  });
  return found;
}

const goodputSpark = (line) => (element) =>
  spark(element, line.spark, 1, `In time over five minutes: now ${share(line.minute.goodput)}, over all ${share(line.five_minutes.goodput)}`, GOOD);

function showTiles(state) {
  const { minute, five_minutes: five } = state.overall;
  timely(minute.goodput)(at("goodput"));
  put(at("goodput-more"), `${share(five.goodput)} over five minutes; ${counted(minute.met, "request")} in time`);
  goodputSpark(state.overall)(at("goodput-spark"));
  put(at("requests"), rate(state.load.requests_per_s));
  put(at("requests-more"), `${counted(minute.offered, "request")} in the last minute`);
  const { requests_spark: requests, output_tokens_spark: tokens } = state.load;
  spark(at("requests-spark"), requests, Math.max(1, ...requests), "Requests a second over five minutes");
  put(at("tokens"), rate(state.load.output_tokens_per_s));
  put(at("tokens-more"), "of answers");
  spark(at("tokens-spark"), tokens, Math.max(1, ...tokens), "Tokens a second over five minutes");
  const inFlight = state.instances.reduce((sum, one) => sum + one.in_flight, 0);
  put(at("in-flight"), whole(inFlight));
  const resumed = state.resumed ? `; ${counted(state.resumed, "stream")} went on elsewhere` : "";
  put(at("in-flight-more"), `${whole(state.in_time_so_far)} in time so far${resumed}`);
  put(at("refused"), whole(minute.expired + minute.shed + minute.failed));
  const reasons = [[minute.expired, "expired"], [minute.shed, "shed"], [minute.failed, "failed"]];
  const said = reasons.filter(([n]) => n).map(([n, what]) => `${whole(n)} ${what}`).join(", ");
  put(at("refused-more"), `${said || "none"} in the last minute`);
}

function showInstances(state) {
  table("instances", state.instances, (one) => one.name, (one) => [
    (element) => {
      if (!element.firstChild) element.append("", made("span", "pool"));
      if (element.firstChild.data !== one.name) element.firstChild.data = one.name;
      put(element.lastChild, one.pool && ` ${one.pool}`);
      element.title = one.name;
    },
    (element) => {
      if (!element.firstChild) element.append(made("span"), " ", made("span", "soft"));
      element.className = "text";
      element.firstChild.className = `state ${KIND[one.condition] ?? "calm"}`;
      put(element.firstChild, one.condition);
      const why = one.reason && one.condition !== "ready" ? `: ${one.reason}` : "";
      put(element.lastChild, `${lasting(one.for_s)}${why}`);
      element.title = one.reason;
    },
    one.in_flight, one.waiting, lasting(one.ttft_p50_s), lasting(one.ttft_p99_s), one.served, one.failures, one.restarts,
  ]);
}

function showWaiting(state) {
  const total = state.slack.reduce((sum, band) => sum + band.waiting, 0);
  put(at("waiting"), state.max_queue === null ? whole(total) : `${whole(total)} of at most ${whole(state.max_queue)}`);
  const bands = state.slack.map((band, index) => ({ ...band, index }));
  const byName = (band) => band.name;
  const segment = (band) => made("span", `band-${band.index}`);
  keep(at("slack-bar"), bands.filter((band) => band.waiting), byName, segment, (node, band) => {
    node.style.flexGrow = band.waiting;
    node.title = `${band.name}: ${band.waiting}`;
  });
  const said = bands.filter((band) => band.waiting).map((band) => `${band.name}: ${band.waiting}`).join(", ");
  at("slack-bar").setAttribute("aria-label", said || "Nothing waits");
  const entry = (band) => {
    const item = made("li");
    item.append(made("span", `chip band-${band.index}`), made("span", "", band.name), made("b"));
    return item;
  };
  keep(at("slack"), bands, byName, entry, (item, band) => {
    put(item.lastChild, whole(band.waiting));
    item.classList.toggle("zero", band.waiting === 0);
  });
  const { waiting, oldest_s: oldest } = state.door;
  put(at("door"), waiting ? `At the gateway itself: ${whole(waiting)}, the first for ${lasting(oldest)}.` : "");
}

function showHandOffs(state) {
  const minute = state.hand_offs.reduce((sum, one) => sum + one.minute, 0);
  put(at("hand-off-count"), state.hand_offs.length ? `${whole(minute)} in the last minute` : "");
  const entry = () => {
    const item = made("li");
    item.append(made("span"), made("b"), made("span", "count"));
    return item;
  };
  keep(at("hand-offs"), state.hand_offs, (one) => `${one.source} ${one.target}`, entry, (item, one) => {
    put(item.children[0], `${one.source} → ${one.target}`);
    put(item.children[1], whole(one.minute));
    put(item.children[2], `${whole(one.total)} so far`);
  });
  empty("hand-offs", state.hand_offs);
  const tickets = state.instances.filter((one) => one.ticket).map((one) => one.name).join(", ");
  put(at("tickets"), tickets && `Idle and taking the next new request: ${tickets}.`);
}

function showClasses(state) {
  const late = (span) => span.finished - span.met;
  table("classes", state.classes, (one) => JSON.stringify([one.slo, one.tenant]), (one) => [
    one.tenant || "(none)", text(one.slo || "none"), timely(one.minute.goodput), timely(one.five_minutes.goodput),
    goodputSpark(one), one.five_minutes.offered, late(one.five_minutes), one.five_minutes.expired, one.five_minutes.shed,
    one.five_minutes.failed, one.five_minutes.cancelled,
  ]);
  empty("classes", state.classes);
  at("classes-left-out").hidden = !state.classes_left_out;
  put(at("classes-left-out"), `${counted(state.classes_left_out, "quieter row")} not shown; all are in the totals above.`);
}

function showRefusals(state) {
  const newest = [...state.refusals].reverse();
  table("refusals", newest, (one) => `${one.at_s} ${one.tenant}`, (one) => [
    time(one.at_s), String(one.status), text(one.code ? `${one.code}: ${one.reason}` : one.reason, "why"),
    text(one.tenant || "(none)"), text(one.slo || "none"),
  ]);
  empty("refusals", newest);
}

function verdict(state) {
  const ready = state.instances.filter((one) => one.condition === "ready").length;
  const all = state.instances.length;
  if (!ready) return ["bad", all ? `None of ${counted(all, "instance")} ready` : "No instance"];
  if (ready < all) return ["warn", `${ready} of ${counted(all, "instance")} ready`];
  const goodput = state.overall.minute.goodput;
  if (goodput !== null && goodput < GOOD) return ["warn", "Ready, and many requests are late"];
  return ["good", all === 1 ? "Ready" : all === 2 ? "Both instances ready" : `All ${all} instances ready`];
}

function show(state) {
  put(at("model"), state.model);
  document.title = state.model ? `${state.model} – Headway` : "Headway";
  const [kind, says] = verdict(state);
  at("verdict").className = `verdict ${kind}`;
  put(at("verdict"), says);
  [showTiles, showInstances, showWaiting, showHandOffs, showClasses, showRefusals].forEach((part) => part(state));
  put(at("version"), state.version);
  put(at("up"), lasting(state.up_s));
}

let seen = null;
let paused = false;

async function ask() {
  const answer = await fetch(STATE, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.status === 401) throw new Error("it wants a key; reload the page to enter it");
  if (!answer.ok) throw new Error(`it answered with status ${answer.status}`);
  return answer.json();
}

async function refresh() {
  try {
    const state = await ask();
    if (paused) return;
    show(state);
    seen = new Date();
    at("trouble").hidden = true;
    at("main").classList.remove("stale");
    put(at("clock"), time(state.at_s));
  } catch (error) {
    if (!paused) unreachable(error);
  }
}

function unreachable(error) {
  const why = error instanceof TypeError || error.name === "TimeoutError" ? "it does not answer" : error.message;
  const last = seen === null ? "" : ` These figures are from ${seen.toLocaleTimeString("en-GB")}.`;
  put(at("trouble"), `The gateway cannot be reached: ${why}.${last} Trying again every second.`);
  at("trouble").hidden = false;
  at("main").classList.add("stale");
  at("verdict").className = "verdict bad";
  put(at("verdict"), "No connection");
}

function togglePause() {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", String(paused));
  put(at("pause"), paused ? "Go on" : "Pause");
}

at("pause").addEventListener("click", togglePause);
document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() === "p" && !event.ctrlKey && !event.metaKey && !event.altKey) togglePause();
});

for (;;) {
  const started = performance.now();
  if (!paused) await refresh();
  await new Promise((wake) => setTimeout(wake, Math.max(100, EVERY_MS - (performance.now() - started))));
}
