// Asks the gateway for its state every second and shows it. Whatever comes from clients is set as text, never as markup.

import { GOOD, at, axes, counted, empty, keep, lasting, made, put, rate, share, spark, table, text, time, timely, whole } from "./draw.js";
import { explain } from "./explain.js";

const EVERY_MS = 1000;
const PATIENCE_MS = 3000;
const STATE = new URL("dashboard/state", location.origin + location.pathname); // without the key that the page's may hold
const KIND = { ready: "good", starting: "calm", draining: "calm", stopped: "calm", unwell: "warn", lost: "bad" };

const goodputSpark = (line) => (element) =>
  spark(element, line.spark, 1, `In time over five minutes: now ${share(line.minute.goodput)}, over all ${share(line.five_minutes.goodput)}`, GOOD);

function showTiles(state) {
  const { minute, five_minutes: five } = state.overall;
  timely(minute.goodput)(at("goodput"));
  put(at("goodput-more"), `${share(five.goodput)} over five minutes; ${counted(minute.met, "request")} in time`);
  goodputSpark(state.overall)(at("goodput-spark"));
  axes("goodput-spark", "100 %");
  put(at("requests"), rate(state.load.requests_per_s));
  put(at("requests-more"), `${counted(minute.offered, "request")} in the last minute`);
  const { requests_spark: requests, output_tokens_spark: tokens } = state.load;
  const most = Math.max(1, ...requests);
  spark(at("requests-spark"), requests, most, "Requests a second over five minutes");
  axes("requests-spark", rate(most));
  put(at("tokens"), rate(state.load.output_tokens_per_s));
  const { apart = 0, failed = 0 } = state.prefills;
  const stages = apart || failed ? `; ${counted(apart, "prompt")} computed apart, ${whole(failed)} failed` : "";
  put(at("tokens-more"), `of answers${stages}`);
  const fastest = Math.max(1, ...tokens);
  spark(at("tokens-spark"), tokens, fastest, "Tokens a second over five minutes");
  axes("tokens-spark", rate(fastest));
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
    one.in_flight, one.waiting, lasting(one.ttft_p50_s), lasting(one.ttft_p99_s), lasting(one.tbt_p50_s),
    lasting(one.tbt_p99_s), share(one.kv_used), share(one.cache_found), one.served, one.failures, one.restarts,
  ]);
}

function showWaiting(state) {
  const total = state.slack.reduce((sum, band) => sum + band.waiting, 0);
  put(at("waiting"), state.max_queue === null ? whole(total) : `${whole(total)} (at most ${whole(state.max_queue)} sequences)`);
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

function showBatches(state) {
  at("batches-sheet").hidden = !state.batches.length;
  table("batches", state.batches, (one) => one.id, (one) => [
    one.id, text(one.tenant || "(none)"), text(one.status), `${whole(one.completed + one.failed)} of ${whole(one.total)}`, one.failed,
    one.in_flight, lasting(Math.max(0, one.left_s)), lasting(one.expected_s), text(whole(one.unfinished), one.unfinished ? "low" : ""),
  ]);
}

// What other policies would have made of the same requests: simulated, beside what really came.
function showShadow(state) {
  at("shadow").hidden = state.shadow === null;
  if (state.shadow === null) return;
  const { requests, window_s: window, at: made, step_error: error, assumed, failed, known_s: known, cannot_judge: doubt } = state.shadow;
  put(at("shadow-head"), `${counted(requests, "request")} of ${lasting(window)}, at ${time(made)}`);
  const rows = Object.entries(state.shadow.figures);
  table("shadows", rows, ([policy]) => policy, ([policy, one]) => [
    policy, timely(one.goodput), lasting(one.mean_jct_s), lasting(one.mean_ttft_s), lasting(one.p99_ttft_s), one.finished,
  ]);
  at("shadow-doubt").hidden = doubt === null;
  put(at("shadow-doubt"), `Cannot judge other policies by this simulation: ${doubt}.`);
  const notes = [`All but the live row are simulated, with step times off by ${share(error)} (median).`];
  if (known !== null) notes.push(`Only what came in the last ${lasting(known)} is known, its first half leads up to the window.`);
  if (assumed) notes.push(`${counted(assumed, "request")} did not finish live; their lengths are assumed.`);
  notes.push(...Object.entries(failed).map(([policy, why]) => `${policy}: ${why}.`));
  put(at("shadow-note"), notes.join(" "));
}

function showRecent(state) {
  table("recent", state.recent, (one) => `${one.at_s} ${one.id}`, (one) => [
    (element) => {
      if (!element.firstChild) {
        element.append(made("button", "link", one.id));
        element.firstChild.type = "button";
        element.firstChild.addEventListener("click", () => explain(one.id));
      }
      element.title = one.id;
    },
    time(one.at_s), text(one.tenant || "(none)"), text(one.instances.join(" → ") || "(none)"),
    text(one.outcome === "finished" && !one.met ? "finished late" : one.outcome, one.met ? "" : "low"),
    lasting(one.ttft_s), lasting(one.lasted_s), one.tokens,
  ]);
  empty("recent", state.recent);
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
  const wanted = state.instances.filter((one) => one.condition !== "parked");
  const ready = wanted.filter((one) => one.condition === "ready").length;
  const all = wanted.length;
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
  [showTiles, showInstances, showWaiting, showHandOffs, showClasses, showBatches, showShadow, showRecent, showRefusals].forEach((part) => part(state));
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
