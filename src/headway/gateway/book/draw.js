// What the page is drawn with. Whatever comes from clients is set as text, never as markup.

export const DASH = "–";
export const GOOD = 0.9; // a smaller share of requests in time is marked

export const at = (id) => document.getElementById(id);
export const counted = (number, one, many = `${one}s`) => `${whole(number)} ${number === 1 ? one : many}`;
export const whole = (number) => number.toLocaleString("en", { maximumFractionDigits: 0 });
export const rate = (number) => number.toLocaleString("en", { maximumFractionDigits: number < 10 ? 1 : 0 });
export const share = (part) => (part === null ? DASH : `${(part * 100).toFixed(part === 1 ? 0 : 1)} %`);
export const time = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

export function lasting(seconds) {
  if (seconds === null) return DASH;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function made(tag, kind = "", text = "") {
  const node = document.createElement(tag);
  node.className = kind;
  node.textContent = text;
  return node;
}

// Children of `parent`, one an item, kept by key, so that focus and scrolling survive a refresh.
export function keep(parent, items, keyOf, make, show) {
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
export function table(id, items, keyOf, cells) {
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
export function empty(id, items) {
  at(`no-${id}`).hidden = items.length > 0;
  (at(id).closest(".scroll") ?? at(id)).hidden = items.length === 0;
}

export const timely = (part) => (element) => {
  element.classList.toggle("low", part !== null && part < GOOD);
  put(element, share(part));
};

export const text = (value, kind = "") => (element) => {
  element.className = `text ${kind}`;
  element.title = value;
  put(element, value);
};

export function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
  return node;
}

// A line of values from 0 to `top`; null leaves a gap. `mark` is a dashed line at that value.
export function spark(element, values, top, says, mark = null) {
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

// What the lines of a tile mean: its top beside it, the time below it. Readers of the page have the chart's label.
export function axes(id, top) {
  const [up, along] = [`${id}-top`, `${id}-time`].map((name) => at(name));
  put(up, `to ${top}`);
  put(along, "5 min ago … now");
}

export function runs(values) {
  const found = [];
  values.forEach((value, step) => {
    if (value === null) return;
    if (step === 0 || values[step - 1] === null) found.push([]);
    found.at(-1).push([step, value]);
  });
  return found;
}
