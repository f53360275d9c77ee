// Drawings: the pipeline and lines over time, as SVG. Numbers come in, elements go out; nothing is
// asked of anybody here. Text is set as text, so nothing of a broker's can become markup.

const SVG = "http://www.w3.org/2000/svg";
// Two boxes stand side by side in a window 360 px wide; a row's boxes share its whole width.
const BOX = { least: 140, line: 20, gap: 106, drop: 52, beside: 14, ends: 34 };

// As the README draws it: what lies between two stages, by who reads it; who stands below them, and
// for what. A test compares both with the README and with the actors there are.
export const BETWEEN = { committer: "pool", flusher: "commitlog/", reput: "on disk", reader: "consumequeue/" };
const BELOW = [["allocator", "cleaner", "gateway", "monitor"], ["coordinator", "scheduler", "transactions"]];
export const FOR = {
  allocator: "segments",
  cleaner: "old files go",
  gateway: "RocketMQ's protocol",
  monitor: "the page, metrics",
  coordinator: "groups, offsets",
  scheduler: "delays",
  transactions: "half messages",
};
// Where these have something for the log, they send it to the writer as producers do.
const SENDERS = "what is due, given back, committed";

// A chart spans this many seconds, and more when there are more.
export const SHORTEST_S = 60;

export function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// The stages in the order of the data, with each one's distance on the arrow to it; below them the
// actors that serve them. In a narrow window the stages stand one below the other.
export function pipeline(overview, width, told) {
  const byName = new Map(overview.actors.map((actor) => [actor.name, actor]));
  const stages = overview.pipeline.map((name) => byName.get(name));
  const others = overview.actors.filter(
    (actor) => !overview.pipeline.includes(actor.name) && actor.state !== "off",
  );
  const across = width >= stages.length * (BOX.least + BOX.gap) - BOX.gap;
  const wide = share(width, across ? stages.length : 1, BOX.gap);
  const tall = tallness(5);
  const found = [];
  stages.forEach((actor, at) => {
    const x = across ? at * (wide + BOX.gap) : 0;
    const y = BOX.ends + (across ? 0 : at * (tall + BOX.drop));
    found.push(...box(actor, { x, y, width: wide, height: tall }, told));
    if (at) found.push(...arrow(actor, x, y, across, told));
  });
  const end = BOX.ends + (across ? tall : stages.length * (tall + BOX.drop) - BOX.drop);
  const right = across ? (stages.length - 1) * (wide + BOX.gap) : 0;
  found.push(...pointing(30, 4, BOX.ends - 4), words(44, 18, "producer"));
  if (across) found.push(...pointing(right + 30, BOX.ends - 4, 4), words(right + 44, 18, "consumer"));
  else found.push(...pointing(30, end + 4, end + 28), words(44, end + 22, "consumer"));
  const top = end + BOX.drop;
  const below = across ? under(others, top, wide, told) : grid(others, top, width, told);
  found.push(...below.drawn);
  const label = stages.map((actor) => `${actor.name} ${actor.state}, ${told.behind(actor)}`);
  return svg(
    "svg",
    {
      class: "pipeline",
      viewBox: `-2 -2 ${width + 4} ${below.height + 4}`,
      role: "img",
      "aria-label": `The pipeline: ${label.join("; ")}. The table below says the same.`,
    },
    ...found,
  );
}

// Each below a stage, with arrows to the writer: from the allocator, and along the left side of it
// from those who send.
function under(others, top, wide, told) {
  const known = BELOW.flat();
  const lines = BELOW.map((names) => names.flatMap((name) => others.filter((each) => each.name === name)));
  lines[0].push(...others.filter((each) => !known.includes(each.name)));
  const height = tallness(5);
  const drawn = [];
  let y = top;
  for (const line of lines.filter((each) => each.length)) {
    line.forEach((actor, at) => {
      const aside = actor.name === "allocator" ? 28 : 0;
      const x = at * (wide + BOX.gap) + aside;
      drawn.push(...box(actor, { x, y, width: wide, height }, told));
      if (aside) drawn.push(...pointing(x + 30, y - 4, top - BOX.drop + 4));
    });
    if (line.some((actor) => BELOW[1].includes(actor.name)))
      drawn.push(...pointing(14, y - 4, top - BOX.drop + 4), words(28, y - 20, SENDERS));
    y += height + BOX.drop;
  }
  return { drawn, height: y - BOX.drop };
}

function grid(others, top, width, told) {
  const columns = Math.max(1, Math.floor((width + BOX.beside) / (BOX.least + BOX.beside)));
  const rows = Math.ceil(others.length / columns);
  // as many in each row as there can be: 4 and 3, and not 6 and 1
  const perRow = Math.ceil(others.length / Math.max(1, rows));
  const size = { width: share(width, perRow, BOX.beside), height: tallness(5) };
  const drawn = others.flatMap((actor, at) => {
    const x = (at % perRow) * (size.width + BOX.beside);
    const y = top + Math.floor(at / perRow) * (size.height + BOX.beside);
    return box(actor, { x, y, ...size }, told);
  });
  return { drawn, height: top + rows * (size.height + BOX.beside) - BOX.beside };
}

const words = (x, y, text) => svg("text", { class: "quiet", x, y }, text);

// Down, or up, to `y2`.
function pointing(x, y1, y2) {
  const back = y2 > y1 ? y2 - 8 : y2 + 8;
  return [
    svg("line", { class: "arrow", x1: x, y1, x2: x, y2: back }),
    svg("polygon", { class: "head", points: `${x - 5},${back} ${x},${y2} ${x + 5},${back}` }),
  ];
}

const share = (width, boxes, gap) => (width - (boxes - 1) * gap) / Math.max(1, boxes);
const tallness = (lines) => 12 + lines * BOX.line;

function box(actor, place, told) {
  const kind = told.kind(actor);
  const lines = [
    ["name", actor.name],
    [kind || "quiet", `${actor.state}${actor.pid ? `, pid ${actor.pid}` : ""}`],
    [actor.restarts > 0 ? "warn" : "quiet", told.restarts(actor)],
    // a log offset has up to 20 characters: it has a line of its own
    ...(actor.position ? [["quiet", actor.position], ["", told.count(actor.at)]] : [["quiet", told.beside(actor)]]),
    ...(actor.name in FOR ? [["", FOR[actor.name]]] : []),
  ];
  return [
    svg("rect", { class: `box ${kind}`, ...place, rx: 6 }),
    ...lines.map(([kind, text], at) =>
      svg("text", { class: kind, x: place.x + 10, y: place.y + 22 + at * BOX.line }, text),
    ),
  ];
}

function arrow(actor, x, y, across, told) {
  const distance = told.distance(actor);
  const between = BETWEEN[actor.name] ?? "";
  if (!across) {
    const line = [between, ...distance].filter(Boolean).join(", ");
    return [...pointing(x + 30, y - BOX.drop + 4, y - 4), words(x + 44, y - 20, line)];
  }
  const [x1, x2, middle] = [x - BOX.gap + 4, x - 10, y + 46];
  return [
    svg("line", { class: "arrow", x1, y1: middle, x2, y2: middle }),
    svg("polygon", { class: "head", points: `${x2},${middle - 5} ${x2 + 8},${middle} ${x2},${middle + 5}` }),
    words(x1, y + 36, between),
    ...distance.map((text, at) => words(x1, y + 64 + at * 18, text)),
  ];
}

// The highest value that is drawn.
export const highest = (rows, keys) => Math.max(0, ...rows.flatMap((row) => keys.map((key) => row[key] ?? 0)));

// One or two lines over what there is of the last 15 minutes, and over a minute at least. A row
// without a value leaves a gap: it is not 0.
export function chart(rows, keys, label) {
  const most = Math.max(1e-9, highest(rows, keys));
  const seconds = Math.max(SHORTEST_S, rows.length);
  const paths = keys.map((key, number) => {
    let pen = "M";
    let path = "";
    rows.forEach((row, at) => {
      const value = row[key];
      if (value === null) {
        pen = "M";
        return;
      }
      const x = seconds - rows.length + at;
      path += `${pen}${x} ${(98 - (value / most) * 92).toFixed(1)}h1`;
      pen = "L";
    });
    return svg("path", { class: number ? "second" : "first", d: path || "M0 0" });
  });
  return svg(
    "svg",
    {
      class: "chart",
      viewBox: `0 0 ${seconds} 100`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    ...paths,
  );
}
