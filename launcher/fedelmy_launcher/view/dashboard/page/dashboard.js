// Updates the page in place from one stream of server-sent events. Texts of sites are never parsed as HTML.

import { Graph, drawn, say, share } from "./graph.js";

const byId = (id) => document.getElementById(id);
const made = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const show = (element, is) => { if (element.hidden === is) element.hidden = !is; };
const dress = (element, name) => { if (element.className !== name) element.className = name; };

// ---- texts ------------------------------------------------------------------------------------------------------

const percent = (value) => value === null || value === undefined ? "" : `${(100 * value).toFixed(1)}%`;
const size = (bytes) => {
  for (const unit of ["B", "kB", "MB"]) {
    if (bytes < 1000) return unit === "B" ? `${bytes} B` : `${bytes.toFixed(1)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} GB`;
};
/** Same format as `duration_text` in Python. */
const lasted = (seconds) => {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 100) return `${whole} s`;
  if (whole < 6000) return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  return whole < 360000 ? `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min` : `${Math.floor(whole / 86400)} days`;
};
const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const moment = (seconds) => {
  const then = new Date(1000 * seconds), today = then.toDateString() === new Date().toDateString();
  const day = today ? "" : `${then.toLocaleDateString([], { day: "numeric", month: "short" })} `;
  return day + then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
};

const RUNS = {
  running: ["running", "●"], done: ["done", "✓"], prepared: ["still", "○"], pending: ["warning", "…"], failed: ["bad", "✕"],
  cancelled: ["still", "✕"], aborted: ["bad", "✕"], expired: ["bad", "✕"], skipped: ["warning", "↷"], "no answer": ["bad", "?"],
  unknown: ["still", "?"], asking: ["still", "…"],
};
const tones = (state) => RUNS[state] || ["still", "?"];

/** A site's status with its colour and its icon: never the colour alone. */
const statusOf = (site) => {
  if (site.skipped) return { tone: "warning", icon: "↷", status: "skipped" };
  if (site.silence) return { tone: "bad", icon: "?", status: "no answer" };
  if (site.state === "running") {
    const busy = !["waiting", "queued"].includes(site.doing);
    if (site.unreachable.length) return { tone: "warning", icon: "!", status: site.doing || "waiting" };
    if (site.doing === "waiting" && share(site) === 1) return { tone: "training", icon: "✓", status: "trained" };
    return { tone: busy ? "training" : "still", icon: busy ? "●" : "○", status: site.doing || "waiting" };
  }
  const [tone, icon] = tones(site.state);
  return { tone, icon, status: site.state };
};

const doing = (site) => {
  if (site.skipped) return `${site.silence ? "does not answer; " : ""}the other sites continued without it`;
  if (site.silence) return "does not answer; retrying";
  if (site.state === "done") return `${site.evaluation ? "has evaluated the result" : "done"}${site.seconds ? `; trained for ${lasted(site.seconds)}` : ""}`;
  if (site.state !== "running") return site.problem ? "" : { prepared: "ready, not started", pending: "waiting for approval by its administrator" }[site.state] || "";
  if (!site.is_fitting) return site.says;
  const visit = site.visits > 1 ? `visit ${site.visit} of ${site.visits}` : "";
  const what = ["training", "warm-up"].includes(site.doing) ? visit : site.doing;
  const model = site.member ? `pool member ${site.member} of ${site.members}` : "warm-up";
  return [what, model, `epoch ${site.epoch} of ${site.epochs}`].filter(Boolean).join(", ");
};

// ---- a site's card ----------------------------------------------------------------------------------------------

class Card {
  constructor(name) {
    this.pill = made("span", { class: "pill" });
    this.doing = made("p", { class: "doing" });
    this.pool = made("div", { class: "pool", role: "img" });
    this.facts = { loss: made("dd"), validation: made("dd"), test: made("dd") };
    const list = made("dl", {},
      made("div", {}, made("dt", {}, "loss"), this.facts.loss),
      made("div", {}, made("dt", {}, "validation"), this.facts.validation),
      made("div", {}, made("dt", {}, "test"), this.facts.test));
    this.spark = drawn("svg", { class: "spark", viewBox: "0 0 100 46", preserveAspectRatio: "none", role: "img" });
    this.key = made("div", { class: "sparkkey", "aria-hidden": "true" }, made("span", { class: "a" }, "loss"), made("span", { class: "b" }, "validation"));
    this.transfer = made("div", { class: "transfer" });
    this.transferText = made("div");
    this.transferBar = made("b");
    this.transferTrack = made("div", { class: "track" }, this.transferBar);
    this.transfer.append(this.transferText, this.transferTrack);
    this.troubles = made("div", { class: "troubles" });
    const title = made("h3", {}, name);
    this.element = made("article", { class: "card", "data-site": name, "aria-label": name }, made("div", { class: "top" }, title, this.pill),
      this.doing, this.pool, list, this.spark, this.key, this.transfer, this.troubles);
  }

  show(site, links) {
    const { tone, icon, status } = statusOf(site);
    dress(this.pill, `pill tone-${tone}`);
    say(this.pill, `${icon} ${status}`);
    say(this.doing, doing(site));
    this.showPool(site);
    say(this.facts.loss, typeof site.loss === "number" ? (site.loss < 0.01 && site.loss > 0 ? site.loss.toPrecision(2) : site.loss.toFixed(3)) : "–");
    say(this.facts.validation, percent(site.validation) || "–");
    say(this.facts.test, (site.evaluation && percent(site.evaluation.accuracy)) || "–");
    this.showSpark(site.pool, site.members);
    this.showTransfer(links.filter((link) => link.from === site.name));
    const texts = [
      ...(site.silence ? [[`${site.silence.message} (${site.silence.code})`, true]] : []),
      ...site.unreachable.map((text) => [text, false]),
      ...(site.problem ? [[site.problem, ["failed", "aborted", "expired"].includes(site.state)]] : []),
    ];
    const key = JSON.stringify(texts);
    if (key !== this.troubled) {
      this.troubled = key;
      this.troubles.replaceChildren(...texts.map(([text, bad]) => made("p", { class: `trouble-text${bad ? " bad" : ""}` }, text)));
    }
    show(this.troubles, texts.length > 0);
    return status;
  }

  showPool(site) {
    const known = new Map(site.pool.map((member) => [member.member, member]));
    const many = Math.min(64, site.members || (site.pool[0] && site.pool[0].members) || 0);
    const numbers = [...(known.has(0) ? [0] : []), ...Array.from({ length: many }, (_, index) => index + 1)];
    if (numbers.join() !== this.numbers) {
      this.numbers = numbers.join();
      this.bars = numbers.map(() => made("b"));
      this.pool.replaceChildren(...this.bars.map((bar, index) => made("span", numbers[index] ? {} : { class: "warmup" }, bar)));
    }
    numbers.forEach((number, index) => {
      const member = known.get(number), part = !member ? 0 : member.kept !== null ? 1 : member.epochs ? Math.min(1, member.epoch / member.epochs) : 0;
      this.bars[index].style.transform = `scaleX(${part})`;
      this.bars[index].parentNode.classList.toggle("kept", Boolean(member && member.kept !== null && number));
      const accuracy = member && member.accuracy !== null ? `, validation ${percent(member.accuracy)}` : "";
      this.bars[index].parentNode.title = number ? `pool member ${number}: ${member ? `epoch ${member.epoch} of ${member.epochs}${accuracy}` : "not started"}` : `warm-up: epoch ${member.epoch} of ${member.epochs}`;
    });
    const done = site.pool.filter((member) => member.member && member.kept !== null).length;
    this.pool.setAttribute("aria-label", many ? `${done} of ${many} pool members trained` : "nothing trained yet");
    this.pool.style.visibility = numbers.length ? "" : "hidden";
  }

  showSpark(pool, members) {
    const key = pool.map((member) => `${member.member}:${member.curve.length}:${member.epoch}`).join();
    const any = pool.some((member) => member.curve.length > 1);
    this.spark.style.visibility = this.key.style.visibility = any ? "" : "hidden";
    if (key === this.curves) return;
    this.curves = key;
    const losses = pool.flatMap((member) => member.curve.map((row) => row[1])).filter((loss) => loss !== null);
    const most = Math.max(...losses, 1e-9), known = pool.reduce((all, member) => all + Math.max(member.epochs || 0, member.epoch), 0);
    // Leave space for the remaining members, so that the curve does not move.
    const total = known + Math.max(0, members - pool.filter((member) => member.member).length) * (pool.at(-1)?.epochs || 0) || 1;
    const lines = [drawn("line", { x1: 0, x2: 100, y1: 45, y2: 45 })];
    let begun = 0;
    for (const member of pool) {
      const x = (epoch) => (100 * (begun + epoch) / total).toFixed(2);
      const at = (index, scale) => member.curve.filter((row) => row[index] !== null).map((row) => `${x(row[0])},${(44 - 42 * row[index] / scale).toFixed(2)}`).join(" ");
      lines.push(drawn("polyline", { class: member.member ? "loss" : "loss warmup", points: at(1, most) }), drawn("polyline", { class: "validation", points: at(2, 1) }));
      begun += Math.max(member.epochs || 0, member.epoch);
    }
    this.spark.replaceChildren(...lines);
    this.spark.setAttribute("aria-label", "loss and validation accuracy over the epochs");
  }

  showTransfer(links) {
    const under = links.filter((one) => one.state === "moving");
    const link = under.find((one) => !one.problem) || links.filter((one) => one.state === "done").at(-1) || under[0];
    show(this.transfer, Boolean(link));
    if (!link) return;
    const moving = link.state === "moving", rate = link.rate ? `, ${(link.rate / 1e6).toFixed(link.rate < 1e6 ? 2 : 1)} MB/s` : "";
    const again = link.retries ? `, ${link.retries === 1 ? "1 retry" : `${link.retries} retries`}` : "";
    say(this.transferText, moving ? `→ ${link.to}: ${size(link.bytes)} of ${size(link.total)}${rate}${again}` : `→ ${link.to}: ${size(link.total)} sent${rate}${again}`);
    show(this.transferTrack, moving);
    this.transferBar.style.transform = `scaleX(${link.total ? link.bytes / link.total : 0})`;
  }
}

// ---- the page ---------------------------------------------------------------------------------------------------

const LINES = 1000, MOST_CARDS = 24;
const page = { run: null, chosen: "", cards: new Map(), view: null, announced: new Map(), parts: new Map(), skew: 0, runs: [] };
const graph = new Graph(byId("graph"), statusOf);

const caption = (link) => {
  if (link.problem) return link.carries === "deliver" ? "" : "retrying";
  if (link.state === "moving") return link.rate ? `${(link.rate / 1e6).toFixed(1)} MB/s` : `${link.total ? Math.floor(100 * link.bytes / link.total) : 0}%`;
  const often = link.of > 1 ? `${link.times} of ${link.of} × ` : "";
  return link.state === "done" && link.total && link.carries !== "deliver" ? `${often}${size(link.total)}` : "";
};

const showRun = (view) => {
  if (page.run !== view.run) fresh(view.run);
  page.view = view;
  page.skew = Date.now() / 1000 - view.now;
  show(byId("empty"), !view.known);
  show(byId("content"), view.known);
  if (!view.known) {
    const who = view.silent.map((one) => `${one.site}: ${one.message} (${one.code})`).join("; ");
    say(byId("empty"), who ? `No site knows run ${view.run} yet. ${who}` : `Loading run ${view.run} ...`);
    return;
  }
  say(byId("run-name"), view.run);
  const [tone, icon] = tones(view.state);
  dress(byId("run-state"), `pill tone-${tone}`);
  say(byId("run-state"), `${icon} ${view.state}`);
  showTime();
  showResult(view);
  view.links.forEach((link) => { link.caption = caption(link); });
  graph.show(view);
  const shown = view.sites.filter((site) => !site.rests).slice(0, MOST_CARDS), order = shown.map((site) => site.name).join();
  showTogether(view, shown.length);
  for (const site of shown) {
    if (!page.cards.has(site.name)) page.cards.set(site.name, new Card(site.name));
    announce(site.name, page.cards.get(site.name).show(site, view.links));
  }
  if (order !== page.order) {
    page.order = order;
    byId("cards").replaceChildren(...shown.map((site) => page.cards.get(site.name).element));
    columns();
  }
  announce("The run", view.state);
  document.title = `${icon} ${view.state} · ${view.run}`;
  document.body.dataset.run = view.run;
  document.body.dataset.state = view.state;
};

/** Idle sites share a line if there are many. */
const showTogether = (view, shown) => {
  const texts = view.together.map((row) => `${row.sites} sites ${row.text}: ${row.names}`);
  const left = view.sites.filter((site) => !site.rests).length - shown;
  if (left > 0) texts.push(`and ${left} more sites`);
  const key = texts.join("\n");
  if (key === page.resting) return;
  page.resting = key;
  byId("together").replaceChildren(...texts.map((text) => made("li", {}, text)));
  show(byId("together"), texts.length > 0);
};

/** Screen readers announce changes of state, but not numbers. */
const announce = (who, status) => {
  const before = page.announced.get(who);
  page.announced.set(who, status);
  if (before !== undefined && before !== status) say(byId("said"), `${who}: ${status}`);
};

const showTime = () => {
  const view = page.view;
  if (!view || !view.known) return;
  const parts = [view.federation && `federation ${view.federation}`, `${view.sites.length} sites`];
  if (view.began) parts.push(`began ${clock(view.began)}`, lasted(Math.max(0, (view.ended || Date.now() / 1000 - page.skew) - view.began)));
  say(byId("run-facts"), parts.filter(Boolean).join(" · "));
};

const showResult = (view) => {
  const result = view.result, over = ["done", "failed", "aborted", "cancelled", "expired"].includes(view.state);
  const facts = [];
  if (view.state === "done") {
    if (result.accuracy !== null) facts.push(["accuracy", percent(result.accuracy)], ["test samples", `${result.samples} of ${result.measured_at.length === view.sites.length ? "all sites" : result.measured_at.join(", ")}`]);
    facts.push(["trained by", result.contributors.join(", ") || "–"], ["model", size(result.bundle_bytes)], ["sent", `${size(result.bytes_sent)} during training, ${size(result.bytes_delivered)} for the result`]);
    if (result.bundle_sha256) facts.push(["sha256", result.bundle_sha256]);
  }
  const why = view.sites.filter((site) => site.problem && over && view.state !== "done").map((site) => `${site.name}: ${site.problem}`);
  const key = JSON.stringify([facts, view.sentences, why, view.state]);
  if (key === page.result) return;
  page.result = key;
  byId("result-facts").replaceChildren(...facts.map(([name, text]) => made("div", {}, made("dt", {}, name), made("dd", name === "sha256" ? { class: "digest" } : {}, text))));
  byId("result-sentences").replaceChildren(...[...view.sentences, ...why].map((text) => made("li", {}, text)));
  const bad = over && view.state !== "done";
  dress(byId("result"), `result${bad ? " ended" : result.subset || view.sentences.length ? " partial" : ""}`);
  show(byId("result"), facts.length + view.sentences.length + why.length > 0);
};

const fresh = (run) => {
  page.run = run;
  page.cards.clear();
  page.announced.clear();
  page.parts.clear();
  page.order = page.result = page.resting = "";
  graph.clear();
  byId("cards").replaceChildren();
  byId("lines").replaceChildren();
  byId("figures").replaceChildren();
  show(byId("figures-section"), false);
  showRuns(page.list);
};

const showRuns = (list) => {
  if (!list) return;
  page.list = list;
  const note = !list.asked ? "Loading ..." : list.runs.length ? "" : "No runs yet.";
  say(byId("runs-note"), note);
  show(byId("runs-note"), Boolean(note));
  const focused = document.activeElement?.closest("a.run")?.dataset.run;
  byId("runs").replaceChildren(...list.runs.map((entry) => {
    const [tone, icon] = tones(entry.state);
    const link = made("a", { class: "run", href: `#${entry.run}`, "data-run": entry.run, "aria-current": entry.run === page.run },
      made("span", { class: "name" }, entry.run),
      made("span", { class: "facts" }, made("span", { class: `status tone-${tone}` }, `${icon} ${entry.state}`), made("span", {}, moment(entry.changed))));
    return made("li", {}, link);
  }));
  if (focused) [...byId("runs").querySelectorAll("a")].find((link) => link.dataset.run === focused)?.focus();
  say(byId("federation"), list.runs.find((entry) => entry.run === page.run)?.federation || "");
  const texts = [...list.silent.map((one) => `${one.site} does not answer: ${one.message} (${one.code})`), ...list.warnings];
  byId("list-problems").replaceChildren(...texts.map((text) => made("p", { class: "notice" }, text)));
  // Without a chosen run, switch to the newest once the current one has ended.
  const over = page.view && page.view.known && !["running", "prepared", "pending"].includes(page.view.state);
  const newest = list.runs[0];
  if (!page.chosen && over && newest && newest.run !== page.run && newest.run !== page.turned && newest.state === "running") {
    page.turned = newest.run;
    connect();
  }
};

const showLines = (lines) => {
  const list = byId("lines"), box = byId("log");
  const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
  for (const line of lines) {
    if (list.querySelector(`[data-n="${Number(line.n)}"]`)) continue;
    const item = made("li", { class: line.level, "data-n": line.n, "data-time": line.time },
      made("time", {}, clock(line.time)), made("span", { class: "who" }, line.site || "dashboard"), made("span", { class: "text" }, line.text));
    let before = list.lastElementChild;
    while (before && Number(before.dataset.time) > line.time) before = before.previousElementSibling;
    before ? before.after(item) : list.prepend(item);
  }
  while (list.childElementCount > LINES) list.firstElementChild.remove();
  if (follows) box.scrollTop = box.scrollHeight;
};

// Sections of the report in a shadow tree, which isolates its style sheet from ours.
const FIT = ".report { padding: 0; max-width: none; background: none; } .report > figure { margin-left: 0; margin-right: 0; }"
  + " .report > :first-child { margin-top: 0; } .report > :last-child { margin-bottom: 0; }"
  + " @media (prefers-color-scheme: dark) { .report { filter: invert(.93) hue-rotate(180deg); } }";

class Part {
  constructor(name, title) {
    this.version = 0;
    const host = made("div", { class: "drawn" }), root = host.attachShadow({ mode: "open" });
    this.body = made("div", { class: "report" });
    root.append(made("link", { rel: "stylesheet", href: "report.css" }), made("style", {}, FIT), this.body);
    this.element = made("article", { class: "figure", "data-section": name }, made("h3", {}, title), host);
  }

  /** Replace the content at once, without flicker; keep what was unfolded or scrolled. */
  put(html) {
    const next = new DOMParser().parseFromString(html, "text/html").body;
    const kept = (query, key) => [...this.body.querySelectorAll(query)].map((element) => element[key]);
    const unfolded = kept("details", "open"), scrolled = kept(".scroll", "scrollLeft");
    this.body.replaceChildren(...next.childNodes);
    this.body.querySelectorAll("details").forEach((element, index) => { element.open = unfolded[index] || false; });
    this.body.querySelectorAll(".scroll").forEach((element, index) => { element.scrollLeft = scrolled[index] || 0; });
  }
}

const showSections = async (sections) => {
  const run = page.run;
  byId("report-link").href = `report/${encodeURIComponent(run)}`;
  for (const { name, title, version } of sections) {
    const part = page.parts.get(name) || new Part(name, title);
    page.parts.set(name, part);
    if (part.version === version) continue;
    const answer = await fetch(`section/${encodeURIComponent(run)}/${encodeURIComponent(name)}`).catch(() => null);
    if (run !== page.run) return;
    if (!answer || !answer.ok) continue;
    part.put(await answer.text());
    part.version = version;
  }
  sections.forEach(({ name }, index) => {
    const part = page.parts.get(name), at = byId("figures").children[index];
    if (at !== part.element) byId("figures").insertBefore(part.element, at || null);
  });
  show(byId("figures-section"), sections.length > 0);
};

/** As many columns as fit, with rows of equal length. */
const columns = () => {
  const many = Math.max(1, byId("cards").childElementCount), fit = Math.max(1, Math.floor((byId("cards").clientWidth + 14) / 250));
  byId("cards").style.setProperty("--columns", Math.ceil(many / Math.ceil(many / fit)));
};
new ResizeObserver(columns).observe(byId("cards"));

// ---- the stream -------------------------------------------------------------------------------------------------

let stream = null, again = 0;
const live = (state, text) => { byId("live").dataset.state = state; say(byId("live-text"), text); };

const connect = () => {
  clearTimeout(again);
  if (stream) stream.close();
  const mine = stream = new EventSource(page.chosen ? `events?run=${encodeURIComponent(page.chosen)}` : "events");
  const on = (kind, then) => mine.addEventListener(kind, (event) => { if (mine === stream) then(JSON.parse(event.data)); });
  on("hello", () => live("on", "live"));
  on("runs", showRuns);
  on("run", showRun);
  on("log", showLines);
  on("sections", showSections);
  mine.onerror = () => {
    if (mine !== stream) return;
    live("off", "the dashboard does not answer; reconnecting");
    // Browsers reconnect after a broken connection, but not after an error status.
    if (mine.readyState === EventSource.CLOSED) again = setTimeout(connect, 3000);
  };
};

const choose = () => {
  const run = decodeURIComponent(location.hash.slice(1));
  page.chosen = /^[a-z0-9-]{1,64}$/.test(run) ? run : "";
  connect();
};

const key = (name, text) => made("span", { class: "key" }, made("i", { class: name }), text);
byId("legend").append(key("", "transferred"), key("next-edge", "planned"), key("model-dot", "transfer in progress"), key("result-edge", "delivery of the result"));
byId("only-warnings").addEventListener("change", (event) => byId("log").classList.toggle("only-warnings", event.target.checked));
addEventListener("hashchange", choose);
setInterval(showTime, 1000);
choose();
