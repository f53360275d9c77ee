// The page: an address after # is a view, each view asks the API and shows what it says.
// null is shown as "unknown", never as 0. Text is set as text: no message can become markup.

import { SHORTEST_S, chart, highest, pipeline } from "./charts.js";

const main = document.getElementById("main");
const state = document.getElementById("state");
const ROWS = 50;
const EVERY_MS = 2000;
let history = [];
let timer = 0;
let turn = 0;

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

// --- words for numbers ---

const UNKNOWN = "unknown";
const count = (number) => (number === null ? UNKNOWN : number.toLocaleString("en"));

function bytes(number) {
  if (number === null) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (number >= 1024 && at < units.length - 1) {
    number /= 1024;
    at += 1;
  }
  return `${at ? number.toFixed(1) : Math.round(number)} ${units[at]}`;
}

function duration(ms) {
  if (ms === null) return UNKNOWN;
  if (ms < 10) return `${ms ? ms.toFixed(ms < 1 ? 2 : 1) : 0} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 7_200_000) return `${(ms / 60_000).toFixed(1)} min`;
  if (ms < 172_800_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  return `${(ms / 86_400_000).toFixed(1)} days`;
}

const several = (number, one) => `${count(number)} ${one}${number === 1 ? "" : "s"}`;
const when = (ms) => (ms ? new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC") : UNKNOWN);

// --- parts ---

function table(caption, columns, rows) {
  const kind = (column) => ({ class: column.kind ?? null });
  const nothing = el("tr", {}, el("td", { class: "quiet", colspan: columns.length }, "none"));
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, ...columns.map((c) => el("th", { scope: "col", ...kind(c) }, c.name)))),
      el(
        "tbody",
        {},
        ...(rows.length ? rows.map((row) => el("tr", {}, ...columns.map((c) => el("td", kind(c), c.of(row))))) : [nothing]),
      ),
    ),
  );
}

const column = (name, of) => ({ name, of });
const number = (name, of) => ({ name, of, kind: "number" });
const time = (name, of) => ({ name, of, kind: "time" });

function facts(pairs) {
  return el("dl", { class: "facts" }, ...pairs.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v))));
}

function field(label, name, value, type = "text") {
  return el("label", {}, label, el("input", { name, type, value: value ?? "", autocomplete: "off" }));
}

const hidden = (name, value) => el("input", { type: "hidden", name, value });

function link(view, query, text) {
  return el("a", { href: address(view, query) }, text);
}

function address(view, query) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined);
  const words = new URLSearchParams(kept).toString();
  return `#/${view}${words ? `?${words}` : ""}`;
}

// A form whose fields become the address: so a look can be kept, and Back works.
function search(view, fields) {
  return el(
    "form",
    {
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        location.hash = address(view, Object.fromEntries(new FormData(event.target)));
      },
    },
    ...fields,
    el("button", { type: "submit" }, "Search"),
  );
}

function pages(view, query, found) {
  const last = Math.max(1, Math.ceil(found.total / found.rows_a_page));
  const to = (page, text) => link(view, { ...query, page }, text);
  return el(
    "p",
    {},
    `${count(found.total)} in all, page ${found.page} of ${last} `,
    found.page > 1 ? to(found.page - 1, "previous") : "",
    " ",
    found.page < last ? to(found.page + 1, "next") : "",
  );
}

// --- asking ---

// What comes when another view, or a newer look, has begun is an error that `view` drops.
async function ask(path, query = {}) {
  const own = turn;
  const words = new URLSearchParams(query).toString();
  const answer = await fetch(`/api/${path}${words ? `?${words}` : ""}`);
  const found = await answer.json().catch(() => ({ what: `the monitor answered ${answer.status}` }));
  if (own !== turn) throw new Error("this look is over");
  if (!answer.ok) throw new Error([found.what, found.value, found.hint].filter(Boolean).join(". "));
  return found;
}

// --- views ---

const told = {
  count,
  kind: (actor) => (actor.state === "running" ? "" : actor.state === "down" ? "bad" : "warn"),
  restarts: (actor) => several(Math.max(0, actor.restarts), "restart"),
  behind: (actor) => (actor.behind_bytes === null ? "" : `${bytes(actor.behind_bytes)} behind`),
  distance: (actor) =>
    actor.position ? [bytes(actor.behind_bytes), duration(actor.behind_ms)] : ["", ""],
  beside: (actor) => (actor.heartbeat_age_ms === null ? UNKNOWN : `heartbeat ${duration(actor.heartbeat_age_ms)}`),
};

async function overview() {
  const since = history.length ? history.at(-1).at_ms : 0;
  const [found, rows] = await Promise.all([ask("overview"), ask("history", { since })]);
  history = [...history, ...rows].slice(-900);
  say(found);
  const rates = found.rates;
  const rate = (key, shown) => (rates === null ? UNKNOWN : shown(rates[key]));
  const drawn = el("div", {});
  const lines = (title, keys, shown) => {
    const now = Object.entries(keys).map(([key, name]) => [name, shown(history.at(-1)?.[key] ?? null)]);
    const label = `${title}: ${now.map((pair) => pair.join(" ")).join(", ")} now; ${history.length} s are drawn`;
    const drawnMs = Math.max(SHORTEST_S, history.length) * 1000;
    return el(
      "figure",
      {},
      el("figcaption", {}, el("h2", {}, title)),
      el(
        "p",
        { class: "legend" },
        ...now.map(([name, value]) => el("span", {}, `${name} ${value}`)),
        el("span", { class: "most" }, `highest ${shown(highest(history, Object.keys(keys)))}`),
      ),
      chart(history, Object.keys(keys), label),
      el("p", { class: "span" }, el("span", {}, `${duration(drawnMs)} ago`), el("span", {}, "now")),
    );
  };
  show(
    "Pipeline",
    el("h2", {}, "Pipeline"),
    drawn,
    facts([
      ["messages/s", rate("messages_s", (n) => count(Math.round(n)))],
      ["bytes/s", rate("bytes_s", bytes)],
      ["messages", count(found.messages)],
      ["topics", count(found.topics)],
      ["groups", count(found.groups)],
      ["waiting pulls", count(found.waiting_pulls)],
      ["delayed messages", count(found.pending_delayed)],
      ["open transactions", count(found.transactions_open)],
    ]),
    el(
      "div",
      { class: "charts" },
      lines("Messages a second", { messages_s: "now" }, (n) => count(n === null ? n : Math.round(n))),
      lines("Acknowledgement", { acknowledge_p50_ms: "p50", acknowledge_p99_ms: "p99" }, duration),
      lines("Flush", { flush_p50_ms: "p50", flush_p99_ms: "p99" }, duration),
    ),
    el("h2", {}, "Actors"),
    table(
      "Each process, how far it is, and how it does",
      [
        column("actor", (a) => a.name),
        column("state", (a) => el("span", { class: told.kind(a) || "good" }, a.state)),
        number("pid", (a) => a.pid ?? ""),
        number("restarts", (a) => Math.max(0, a.restarts)),
        number("heartbeat", (a) => (a.state === "off" ? "" : duration(a.heartbeat_age_ms))),
        number("log offset", (a) => (a.position ? count(a.at) : "")),
        number("bytes behind", (a) => (a.position ? bytes(a.behind_bytes) : "")),
        number("time behind", (a) => (a.position ? duration(a.behind_ms) : "")),
      ],
      found.actors,
    ),
    el("h2", {}, "Endpoints"),
    table(
      "Where clients connect",
      [column("for", ([name]) => name), column("address", ([, at]) => at)],
      Object.entries(found.endpoints).filter(([, at]) => at),
    ),
  );
  drawn.append(pipeline(found, drawn.clientWidth || 320, told));
  again();
}

async function topics(query) {
  const found = await ask("topics", { rows: ROWS, ...query });
  show(
    "Topics",
    el("h2", {}, "Topics"),
    search("topics", [
      field("Name contains", "search", query.search, "search"),
      choice("Order", "order", query.order, ["name", "messages"]),
      choice("System topics", "all", query.all, [["", "hidden"], ["1", "shown"]]),
    ]),
    pages("topics", query, found),
    table(
      "Topics and what they hold",
      [
        column("topic", (row) => link("topic", { name: row.topic }, row.topic)),
        number("queues", (row) => count(row.queues)),
        number("messages", (row) => count(row.messages)),
        number("ever stored", (row) => count(row.messages_ever)),
      ],
      found.rows,
    ),
  );
}

function choice(label, name, value, options) {
  return el(
    "label",
    {},
    label,
    el(
      "select",
      { name },
      ...options.map((option) => {
        const [key, text] = Array.isArray(option) ? option : [option, option];
        return el("option", { value: key, selected: key === (value ?? "") }, text);
      }),
    ),
  );
}

const held = (row) => (row.max_offset === null || row.min_offset === null ? null : row.max_offset - row.min_offset);

async function topic(query) {
  const found = await ask("topic", { rows: ROWS, ...query });
  show(
    found.topic,
    el("h2", {}, `Topic ${found.topic}`),
    facts([
      ["messages", count(found.messages)],
      ["ever stored", count(found.messages_ever)],
      ["queues to write", count(found.write_queues)],
    ]),
    found.groups === null
      ? el("p", {}, "Its groups are unknown.")
      : el(
          "p",
          {},
          found.groups.length ? "Groups: " : "No group consumes it.",
          ...found.groups.flatMap((g) => [link("group", { name: g }, g), " "]),
          found.group_count > found.groups.length ? link("groups", { topic: found.topic, order: "lag" }, `all ${count(found.group_count)}`) : "",
        ),
    search("topic", [hidden("name", found.topic), field("Queue's number contains", "search", query.search, "search")]),
    pages("topic", query, found),
    table(
      "Queues",
      [
        number("queue", (row) => row.queue),
        number("first offset", (row) => count(row.min_offset)),
        number("next offset", (row) => count(row.max_offset)),
        number("messages", (row) => count(held(row))),
        column("", (row) => (held(row) ? link("messages", { topic: found.topic, queue: row.queue }, "show them") : "")),
      ],
      found.rows,
    ),
  );
}

async function groups(query) {
  const found = await ask("groups", { rows: ROWS, ...query });
  show(
    "Groups",
    el("h2", {}, "Consumer groups"),
    search("groups", [
      field("Name contains", "search", query.search, "search"),
      field("Of the topic", "topic", query.topic),
      choice("Order", "order", query.order, ["name", "lag"]),
    ]),
    pages("groups", query, found),
    table(
      "Groups and how far behind they are",
      [
        column("group", (row) => link("group", { name: row.group }, row.group)),
        number("topics", (row) => count(row.topics)),
        number("queues", (row) => count(row.queues)),
        number("lag", (row) => count(row.lag)),
        number("oldest waits", (row) => duration(row.lag_ms)),
      ],
      found.rows,
    ),
  );
  again();
}

async function group(query) {
  const found = await ask("group", { rows: ROWS, ...query });
  show(
    found.group,
    el("h2", {}, `Group ${found.group}`),
    facts([
      ["lag", found.lag === null ? UNKNOWN : several(found.lag, "message")],
      ["queues", count(found.queues)],
    ]),
    search("group", [
      hidden("name", found.group),
      field("Topic contains", "search", query.search, "search"),
      choice("Order", "order", query.order, ["name", "lag"]),
    ]),
    pages("group", query, found),
    table(
      "Lag of each queue",
      [
        column("topic", (row) => link("topic", { name: row.topic }, row.topic)),
        number("queue", (row) => row.queue),
        number("offset", (row) => count(row.offset)),
        number("end", (row) => count(row.max_offset)),
        number("lag", (row) => count(row.lag)),
        number("bytes", (row) => bytes(row.lag_bytes)),
        number("oldest waits", (row) => duration(row.lag_ms)),
      ],
      found.rows,
    ),
  );
  again();
}

async function messages(query) {
  const found = await ask("messages", query);
  const at = found.rows.length ? found.rows[0].offset : found.max_offset;
  const to = (offset) => ({ ...query, offset: Math.max(found.min_offset, offset) });
  show(
    query.topic,
    el("h2", {}, `Topic ${found.topic}, queue ${found.queue}`),
    el(
      "p",
      {},
      `offsets ${count(found.min_offset)} to ${count(found.max_offset)} `,
      link("messages", to(at - 20), "older"),
      " ",
      link("messages", to(at + 20), "newer"),
    ),
    table("Messages", MESSAGES, found.rows),
  );
}

const MESSAGES = [
  number("offset", (row) =>
    link("message", { topic: row.topic, queue: row.queue, offset: row.offset }, count(row.offset)),
  ),
  time("stored", (row) => (row.error ? row.error : when(row.stored_ms))),
  column("keys", (row) => row.keys ?? ""),
  column("tags", (row) => row.tags ?? ""),
  column("body", (row) => (row.text ?? row.hex ?? row.body_error ?? "").slice(0, 80)),
];

async function message(query) {
  const form = search("message", [
    field("Topic", "topic", query.topic),
    field("Key", "key", query.key),
    field("Message id", "id", query.id),
    field("Queue", "queue", query.queue, "number"),
    field("Offset", "offset", query.offset, "number"),
    field("Stored at or after (UTC)", "since", query.since, "datetime-local"),
  ]);
  show("Message", el("h2", {}, "Find a message"), el("p", { class: "quiet" }, "By id, or by topic with a key, a queue and an offset, or a time."), form);
  const wanted = Object.fromEntries(Object.entries(query).filter(([, value]) => value));
  if (wanted.since) wanted.time = new Date(`${wanted.since}Z`).getTime();
  delete wanted.since;
  if (!Object.keys(wanted).length) return;
  const found = await ask("message", wanted);
  main.append(...(found.rows.length ? found.rows.map(letter) : [el("p", {}, "No message was stored at or after that time.")]));
}

function letter(row) {
  const place = `${row.topic}, queue ${row.queue}, offset ${row.offset ?? UNKNOWN}`;
  if (row.error) return el("section", { "aria-label": place }, el("h2", {}, place), el("p", { class: "bad" }, row.error));
  const body = el("pre", { tabindex: "0", "aria-label": "body" });
  const forms = { text: row.text, JSON: row.json, hex: row.hex };
  const buttons = Object.entries(forms)
    .filter(([, value]) => value)
    .map(([name, value]) =>
      el(
        "button",
        {
          type: "button",
          "aria-pressed": "false",
          onclick: (event) => {
            body.textContent = name === "hex" ? value.replace(/(..)/g, "$1 ") : value;
            buttons.forEach((each) => each.setAttribute("aria-pressed", String(each === event.target)));
          },
        },
        name,
      ),
    );
  const places = { topic: row.topic, queue: row.queue, offset: row.offset };
  const made = el(
    "section",
    { "aria-label": `message ${row.message_id}` },
    el("h2", {}, place),
    facts([
      ["stored", when(row.stored_ms)],
      ["body", row.body_error ?? bytes(row.body_bytes)],
      ["reconsume times", count(row.reconsume_times)],
      ["message id", link("message", { id: row.message_id }, row.message_id)],
    ]),
    el("p", { class: "forms" }, ...buttons, row.is_cut ? "the beginning;" : "", link("message", places, "this message alone"), link("messages", places, "its queue from here")),
    body,
    table(
      "Properties",
      [column("name", ([name]) => name), column("value", ([, value]) => value)],
      Object.entries(row.properties),
    ),
  );
  (buttons.find((each) => each.textContent === "JSON") ?? buttons[0])?.click();
  return made;
}

async function deadLetters(query) {
  const found = await ask("dead-letters", { rows: ROWS, ...query });
  show(
    "Dead letters",
    el("h2", {}, "Dead letters"),
    el("p", { class: "quiet" }, "Messages that a group could not handle, after their last retry."),
    search("dead-letters", [field("Group contains", "search", query.search, "search")]),
    pages("dead-letters", query, found),
    table(
      "Groups with dead letters",
      [
        column("group", (row) => link("messages", { topic: row.topic, queue: 0 }, row.group)),
        number("messages", (row) => count(row.messages)),
        number("ever stored", (row) => count(row.messages_ever)),
      ],
      found.rows,
    ),
  );
}

async function files() {
  const found = await ask("files");
  const size = (part) => (part === null ? UNKNOWN : `${bytes(part.bytes)} in ${several(part.files, "file")}`);
  const never = found.bytes_per_s === null || found.disk === null ? UNKNOWN : "not at this rate";
  const full = found.full_in_s === null ? never : `in ${duration(found.full_in_s * 1000)}`;
  show(
    "Files",
    el("h2", {}, "Files and disk"),
    facts([
      ["commit log", size(found.files.commitlog)],
      ["consume queues", size(found.files.consumequeue)],
      ["index", size(found.files.index)],
      ["disk free", found.disk === null ? UNKNOWN : `${bytes(found.disk.free)} of ${bytes(found.disk.size)}`],
      ["disk used", `${found.disk_used_percent === null ? UNKNOWN : `${found.disk_used_percent} %`}, refuses above ${found.refuses_above_percent} %`],
      ["disk full", full],
      ["log grows", found.bytes_per_s === null ? UNKNOWN : `${bytes(found.bytes_per_s)}/s`],
      ["messages are kept", `${found.retention.file_reserved_time_h} h, deleted at hour ${found.retention.delete_when}`],
    ]),
    el("h2", {}, "Deletions"),
    found.deletions === null
      ? el("p", {}, "They are unknown: the list cannot be read.")
      : table(
          "What was deleted of the log, newest first",
          [
            time("when", (row) => when(row.at_ms)),
            column("why", (row) => row.why),
            number("segments", (row) => count(row.segments)),
            number("messages", (row) => count(row.messages)),
          ],
          found.deletions,
        ),
  );
}

async function recoveries() {
  const found = await ask("recoveries");
  show(
    "Recovery",
    el("h2", {}, "Starts that had to recover"),
    !found.length ? el("p", {}, "Every start was clean.") : table(
      "Newest first",
      [
        time("start", (row) => when(row.at_ms)),
        column("mode", (row) => row.found.mode),
        number("from", (row) => count(row.found.scanned_from)),
        number("log end", (row) => count(row.found.log_end)),
        number("messages", (row) => count(row.found.messages)),
        number("from the pool", (row) => bytes(row.found.pool_bytes)),
        number("torn", (row) => bytes(row.found.torn_bytes)),
        number("damaged", (row) => count(row.found.quarantined.length)),
        number("took", (row) => duration(row.found.seconds * 1000)),
      ],
      found.reverse(),
    ),
  );
}

const VIEWS = { "": overview, topics, topic, groups, group, messages, message, "dead-letters": deadLetters, files, recoveries };
const PARENTS = { topic: "topics", messages: "topics", group: "groups" };

// --- the frame ---

function say(found) {
  const wrong = found.problems.join("; ");
  const words = wrong ? `not healthy: ${wrong}` : `${found.broker} is healthy, on ${found.store}`;
  // the same words set again would be read out again
  if (state.textContent !== words) state.textContent = words;
  state.className = wrong ? "bad" : "good";
}

function show(title, ...children) {
  document.title = `${title} - Penstock`;
  const named = (label) => [...main.querySelectorAll("[aria-label]")].find((e) => e.ariaLabel === label);
  const active = main.contains(document.activeElement) ? document.activeElement : null;
  const [to, label] = [active?.getAttribute("href"), active?.closest("[aria-label]")?.ariaLabel];
  const aside = [...main.querySelectorAll(".scroll")].map((e) => [e.ariaLabel, e.scrollLeft]);
  const at = scrollY;
  main.replaceChildren(...children);
  scrollTo(0, at);
  // a refresh must not take the keyboard's place away, nor that of a table that was moved sideways
  for (const [name, left] of aside) if (left) named(name)?.scrollTo(left, 0);
  const same = to && [...main.querySelectorAll("a")].find((e) => e.getAttribute("href") === to);
  (same || (label && named(label)))?.focus({ preventScroll: true });
}

// Look again while somebody sees it, and not while a field is being filled in or text is selected.
function again() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const fills = ["INPUT", "SELECT"].includes(document.activeElement?.tagName);
    const marks = !getSelection().isCollapsed;
    if (document.hidden || fills || marks) again();
    else view();
  }, EVERY_MS);
}

async function view() {
  clearTimeout(timer);
  const own = ++turn;
  const [name, words] = location.hash.replace(/^#\/?/, "").split("?");
  const look = VIEWS[name] ?? overview;
  for (const each of document.querySelectorAll("nav a")) {
    const here = each.getAttribute("href") === `#/${PARENTS[name] ?? (name in VIEWS ? name : "")}`;
    if (here) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  try {
    await look(Object.fromEntries(new URLSearchParams(words ?? "")));
    if (look !== overview && own === turn) say(await ask("overview"));
  } catch (error) {
    if (own !== turn) return;
    const gone = error instanceof TypeError;
    main.querySelector("[role=alert]")?.remove();
    main.append(el("p", { class: "bad", role: "alert" }, gone ? "The broker does not answer." : error.message));
    if (gone) {
      state.textContent = "unknown: the broker does not answer";
      state.className = "bad";
      again();
    }
  }
}

addEventListener("hashchange", () => {
  main.replaceChildren();
  view().then(() => main.focus({ preventScroll: true }));
});
addEventListener("resize", () => { if (!location.hash.slice(2)) view(); });
view();
