// Why one request took as long as it did: what the gateway saw of it, and what its engines say.

import { at, counted, lasting, made, put, spark } from "./draw.js";

const EXPLAIN = new URL("explain/", location.origin + location.pathname);

let asked = 0;

// What the gateway and the instances know of one request; a later choice goes before an earlier answer.
export async function explain(id) {
  const turn = ++asked;
  at("explained").hidden = false;
  put(at("explained-title"), `Request ${id}`);
  put(at("explained-head"), "Asking …");
  at("explained-parts").replaceChildren();
  at("explained").focus({ preventScroll: true });
  at("explained").scrollIntoView({ block: "nearest" });
  const answer = await askAbout(id);
  if (turn !== asked) return;
  put(at("explained-head"), answer.says);
  at("explained-parts").replaceChildren(...answer.requests.map(explained));
}

async function askAbout(id) {
  try {
    const answer = await fetch(new URL(encodeURIComponent(id), EXPLAIN), { cache: "no-store" });
    if (answer.status === 404) return { says: "The request is too long ago: it is not kept any more.", requests: [] };
    if (!answer.ok) return { says: `The gateway answered with status ${answer.status}.`, requests: [] };
    const found = await answer.json();
    const silent = found.unanswered.map((one) => `${one.instance} cannot tell: ${one.why}.`);
    return { says: [seenAtGateway(found.gateway), ...silent].filter(Boolean).join(" "), requests: found.requests };
  } catch {
    return { says: "The gateway does not answer.", requests: [] };
  }
}

function seenAtGateway(seen) {
  if (seen === null) return "";
  const where = seen.instances.length ? ` at ${seen.instances.join(", then ")}` : "";
  const prompt = seen.prefill_s === null ? "" : `prompt computed after ${lasting(seen.prefill_s)}, `;
  const first = seen.ttft_s === null ? "no token came" : `first token after ${lasting(seen.ttft_s)}`;
  const target = seen.met === false && seen.outcome === "finished" ? ", not in time" : "";
  return `Seen here: ${seen.outcome}${target}${where}; ${prompt}${first}, ${lasting(seen.lasted_s)} in all.`;
}

// One engine's account: what it waited for as a bar, its slack as a line, and the whole story as text.
function explained(one) {
  const part = made("article");
  const where = one.instance ? `At ${one.instance}: ` : "";
  part.append(made("h3", "", `${where}waited ${lasting(one.waited_s)} in all, displaced ${counted(one.num_displaced, "time")}`));
  if (one.waited.length) part.append(waitedBar(one.waited), waitedLegend(one.waited));
  if (one.slack.length > 1) part.append(slackLine(one.slack));
  const story = made("pre", "", one.text);
  const scroll = made("div", "scroll");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", `The story of request ${one.id}`);
  scroll.append(story);
  part.append(scroll);
  return part;
}

const band = (index) => `band-${Math.min(index, 5)}`;

function waitedBar(waited) {
  const bar = made("div", "bar");
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", waited.map((one) => `${one.why}: ${lasting(one.seconds)}`).join("; "));
  bar.append(...waited.map((one, index) => {
    const segment = made("span", band(index));
    segment.style.flexGrow = one.seconds;
    return segment;
  }));
  return bar;
}

function waitedLegend(waited) {
  const list = made("ul", "legend wide");
  list.append(...waited.map((one, index) => {
    const item = made("li");
    item.append(made("span", `chip ${band(index)}`), made("span", "", one.why), made("b", "", lasting(one.seconds)));
    return item;
  }));
  return list;
}

function slackLine(points) {
  const values = points.map((point) => point.slack_s);
  const low = Math.min(0, ...values);
  const says = `Slack from ${values[0].toFixed(3)} s at first to ${values.at(-1).toFixed(3)} s at last; the line is none left`;
  const figure = made("div", "slack-line");
  spark(figure, values.map((value) => value - low), Math.max(1e-9, ...values) - low, says, -low);
  figure.title = says;
  return figure;
}

function closeExplained() {
  asked += 1;
  at("explained").hidden = true;
}

at("explained-close").addEventListener("click", closeExplained);
