// Drawings: the pipeline and lines over time, as SVG. Numbers come in, elements go out; nothing is
// asked of anybody here. Text is set as text, so nothing of a broker's can become markup.

const SVG = "http://www.w3.org/2000/svg";
// Two boxes stand side by side in a window 360 px wide; a row's boxes share its whole width.
const BOX = { least: 140, line: 20, gap: 78, drop: 46, beside: 14 };

// A chart spans this many seconds, and more when there are more.
export const SHORTEST_S = 60;

export function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// The stages in the order of the data, with each one's distance on the arrow to it; below them the
// actors that stand beside. In a narrow window the stages stand one below the other.
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
    const y = across ? 0 : at * (tall + BOX.drop);
    found.push(...box(actor, { x, y, width: wide, height: tall }, told));
    if (at) found.push(...arrow(actor, x, y, across, told));
  });
  const top = across ? tall + 30 : stages.length * (tall + BOX.drop);
  const columns = Math.max(1, Math.floor((width + BOX.beside) / (BOX.least + BOX.beside)));
  const rows = Math.ceil(others.length / columns);
  // as many in each row as there can be: 4 and 3, and not 6 and 1
  const perRow = Math.ceil(others.length / Math.max(1, rows));
  const size = { width: share(width, perRow, BOX.beside), height: tallness(4) };
  others.forEach((actor, at) => {
    const x = (at % perRow) * (size.width + BOX.beside);
    const y = top + Math.floor(at / perRow) * (size.height + BOX.beside);
    found.push(...box(actor, { x, y, ...size }, told));
  });
  const height = top + rows * (size.height + BOX.beside);
  const label = stages.map((actor) => `${actor.name} ${actor.state}, ${told.behind(actor)}`);
  return svg(
    "svg",
    {
      class: "pipeline",
      viewBox: `-2 -2 ${width + 4} ${height + 4}`,
      role: "img",
      "aria-label": `The pipeline: ${label.join("; ")}. The table below says the same.`,
    },
    ...found,
  );
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
  ];
  return [
    svg("rect", { class: `box ${kind}`, ...place, rx: 6 }),
    ...lines.map(([kind, text], at) =>
      svg("text", { class: kind, x: place.x + 10, y: place.y + 22 + at * BOX.line }, text),
    ),
  ];
}

function arrow(actor, x, y, across, told) {
  const [x1, y1] = across ? [x - BOX.gap + 4, y + 46] : [x + 30, y - BOX.drop + 4];
  const [x2, y2] = across ? [x - 10, y + 46] : [x + 30, y - 10];
  const head = across
    ? `${x2},${y2 - 5} ${x2 + 8},${y2} ${x2},${y2 + 5}`
    : `${x2 - 5},${y2} ${x2},${y2 + 8} ${x2 + 5},${y2}`;
  const [bytes, ms] = told.distance(actor);
  const at = across ? { x: x1 + 2, y: y + 36 } : { x: x + 44, y: y - 18 };
  const below = across ? { x: x1 + 2, y: y + 64 } : { x: x + 140, y: y - 18 };
  return [
    svg("line", { class: "arrow", x1, y1, x2, y2 }),
    svg("polygon", { class: "head", points: head }),
    svg("text", { class: "quiet", ...at }, bytes),
    svg("text", { class: "quiet", ...below }, ms),
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
