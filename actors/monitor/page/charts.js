// Drawings: the pipeline and lines over time, as SVG. Numbers come in, elements go out; nothing is
// asked of anybody here. Text is set as text, so nothing of a broker's can become markup.

const SVG = "http://www.w3.org/2000/svg";
const BOX = { width: 150, height: 92, gap: 78, drop: 46 };

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
  const step = BOX.width + BOX.gap;
  const across = width >= stages.length * step - BOX.gap;
  const found = [];
  stages.forEach((actor, at) => {
    const x = across ? at * step : 0;
    const y = across ? 0 : at * (BOX.height + BOX.drop);
    found.push(...box(actor, x, y, told));
    if (at) found.push(...arrow(actor, x, y, across, told));
  });
  const top = across ? BOX.height + 30 : stages.length * (BOX.height + BOX.drop);
  const columns = Math.max(1, Math.floor((width + 14) / (BOX.width + 14)));
  others.forEach((actor, at) => {
    const x = (at % columns) * (BOX.width + 14);
    const y = top + Math.floor(at / columns) * (BOX.height + 14);
    found.push(...box(actor, x, y, told));
  });
  const height = top + Math.ceil(others.length / columns) * (BOX.height + 14);
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

function box(actor, x, y, told) {
  const kind = told.kind(actor);
  const lines = [
    ["name", actor.name],
    [kind || "quiet", `${actor.state}${actor.pid ? `, pid ${actor.pid}` : ""}`],
    [actor.restarts > 0 ? "warn" : "quiet", `${Math.max(0, actor.restarts)} restarts`],
    ["quiet", actor.position ? `${actor.position} ${told.count(actor.at)}` : told.beside(actor)],
  ];
  return [
    svg("rect", { class: `box ${kind}`, x, y, width: BOX.width, height: BOX.height, rx: 6 }),
    ...lines.map(([kind, text], at) =>
      svg("text", { class: kind, x: x + 10, y: y + 22 + at * 20 }, text),
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

// One or two lines over the last 15 minutes. A row without a value leaves a gap: it is not 0.
export function chart(rows, keys, label) {
  const most = Math.max(1e-9, ...rows.flatMap((row) => keys.map((key) => row[key] ?? 0)));
  const paths = keys.map((key, number) => {
    let pen = "M";
    let path = "";
    rows.forEach((row, at) => {
      const value = row[key];
      if (value === null) {
        pen = "M";
        return;
      }
      const x = 900 - rows.length + at;
      path += `${pen}${x} ${(98 - (value / most) * 92).toFixed(1)}h1`;
      pen = "L";
    });
    return svg("path", { class: number ? "second" : "first", d: path || "M0 0" });
  });
  return svg(
    "svg",
    {
      class: "chart",
      viewBox: "0 0 900 100",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    ...paths,
  );
}
