// The chain as a picture: stations on a line, training ways between and above them, the result's way back below.
// Everything that comes from outside is put in as text; no markup is ever made from it.

const SVG = "http://www.w3.org/2000/svg";
const RADIUS = 24, TOP = 92, ROOM = 46;
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

export const drawn = (name, attributes = {}, ...children) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

const put = (element, attributes) => {
  for (const [key, value] of Object.entries(attributes))
    if (element.getAttribute(key) !== String(value)) element.setAttribute(key, value);
};

export const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };

/** How far a site is with its own work, between 0 and 1. */
export const share = (site) => {
  if (site.state === "done" || site.evaluation) return 1;
  const pool = site.pool.filter((member) => member.member > 0);
  const many = site.members || (pool[0] && pool[0].members) || 0;
  if (!many) return 0;
  const sum = pool.reduce((all, m) => all + (m.kept !== null ? 1 : m.epochs ? Math.min(1, m.epoch / m.epochs) : 0), 0);
  return Math.min(1, sum / many);
};

export class Chain {
  constructor(place, words) {
    this.place = place;
    this.words = words;
    this.stations = new Map();
    this.edges = new Map();
    this.order = "";
    this.width = 0;
    new ResizeObserver(() => this.view && this.show(this.view)).observe(place);
  }

  clear() {
    this.place.replaceChildren();
    this.stations.clear();
    this.edges.clear();
    this.order = "";
    this.view = null;
  }

  show(view) {
    this.view = view;
    const width = Math.max(this.place.clientWidth, view.sites.length * 128);
    const order = view.sites.map((site) => site.name).join(" ");
    if (order !== this.order || width !== this.width) this.lay(view, order, width);
    for (const site of view.sites) this.station(site);
    const seen = new Set();
    for (const link of view.links) {
      if (!this.stations.has(link.from) || !this.stations.has(link.to)) continue;
      seen.add(link.id);
      this.edge(link);
    }
    for (const [id, edge] of this.edges) if (!seen.has(id)) { edge.group.remove(); this.edges.delete(id); }
    this.fit();
  }

  lay(view, order, width) {
    this.place.replaceChildren();
    this.stations.clear();
    const before = this.edges;
    this.edges = new Map();
    this.order = order;
    this.width = width;
    this.svg = drawn("svg", { width, height: 200, "aria-hidden": "true" });
    this.ways = drawn("g");
    this.spots = drawn("g");
    this.movers = drawn("g");
    this.svg.append(this.ways, this.spots, this.movers);
    this.place.append(this.svg);
    const many = view.sites.length, step = many > 1 ? Math.min(240, (width - 130) / (many - 1)) : 0;
    const first = (width - step * (many - 1)) / 2;
    view.sites.forEach((site, index) => {
      const x = first + index * step;
      const ring = 2 * Math.PI * RADIUS;
      const parts = {
        x, index,
        ring: drawn("circle", { class: "ring", cx: x, cy: TOP, r: RADIUS, transform: `rotate(-90 ${x} ${TOP})`, "stroke-dasharray": ring, "stroke-dashoffset": ring }),
        icon: drawn("text", { class: "icon", x, y: TOP + 6 }),
        name: drawn("text", { class: "name", x, y: TOP + RADIUS + 21 }),
        what: drawn("text", { class: "what", x, y: TOP + RADIUS + 38 }),
      };
      parts.group = drawn("g", {}, drawn("circle", { class: "ring-track", cx: x, cy: TOP, r: RADIUS }), parts.ring, parts.icon, parts.name, parts.what);
      say(parts.name, site.name.length > 16 ? `${site.name.slice(0, 15)}…` : site.name);
      this.spots.append(parts.group);
      this.stations.set(site.name, parts);
    });
    // What had moved already does not move again because the window changed its size.
    for (const [id, edge] of before) if (edge.state === "done") this.settled = (this.settled || new Set()).add(id);
  }

  station(site) {
    const parts = this.stations.get(site.name), { tone, icon, word } = this.words(site);
    put(parts.group, { class: `station tone-${tone}${site.silence ? " silent" : ""}${site.skipped ? " skipped" : ""}` });
    const ring = 2 * Math.PI * RADIUS, part = share(site);
    put(parts.ring, { "stroke-dashoffset": ring * (1 - part), visibility: part > 0.004 ? "visible" : "hidden" });
    const percent = part > 0 && part < 1 && tone === "training" ? `${Math.round(100 * part)}` : icon;
    say(parts.icon, percent);
    say(parts.what, word.length > 22 ? `${word.slice(0, 21)}…` : word);
  }

  /** Neighbours: a straight line; a way around: an arc above; the result's way: an arc below. */
  path(link) {
    const a = this.stations.get(link.from), b = this.stations.get(link.to);
    const way = Math.sign(b.x - a.x) || 1, gap = RADIUS + 7, far = Math.abs(b.index - a.index);
    if (link.carries === "deliver") {
      const y = TOP + RADIUS + ROOM, deep = y + 14 + 12 * far;
      return { d: `M ${a.x} ${y} C ${a.x} ${deep}, ${b.x} ${deep}, ${b.x} ${y + 6}`, x: (a.x + b.x) / 2, y: deep + 6 };
    }
    if (far === 1 && way > 0) return { d: `M ${a.x + gap} ${TOP} L ${b.x - gap - 6} ${TOP}`, x: (a.x + b.x) / 2, y: TOP - 10 };
    const y = TOP - RADIUS - 5, high = Math.max(-6, y - 26 - 14 * far);
    return { d: `M ${a.x} ${y} C ${a.x + way * 14} ${high}, ${b.x - way * 14} ${high}, ${b.x} ${y - 6}`, x: (a.x + b.x) / 2, y: (y + 3 * high) / 4 - 6 };
  }

  edge(link) {
    let edge = this.edges.get(link.id);
    const fresh = !edge;
    if (fresh) {
      const { d, x, y } = this.path(link);
      edge = { line: drawn("path", { d }), head: drawn("path"), caption: drawn("text", { class: "caption", x, y }), below: y };
      edge.group = drawn("g", {}, edge.line, edge.head, edge.caption);
      this.ways.append(edge.group);
      this.edges.set(link.id, edge);
      this.arrow(edge);
    }
    const deliver = link.carries === "deliver";
    const state = link.problem ? "trouble" : ["moving", "done"].includes(link.state) ? link.state : "waiting";
    put(edge.line, { class: `edge ${state}${deliver ? " deliver" : ""}` });
    put(edge.head, { class: `head-${deliver && state === "done" ? "deliver" : state}` });
    say(edge.caption, link.caption && link.caption.length * 6.2 < Math.abs(this.stations.get(link.to).x - this.stations.get(link.from).x) - (deliver || link.around ? 0 : 62) ? link.caption : "");
    const known = this.settled && this.settled.has(link.id);
    if (state === "moving") this.at(edge, link.total ? link.bytes / link.total : 0);
    else if (edge.dot && state !== "done") this.gone(edge);
    if (state === "done" && !known && edge.state !== "done" && (!fresh || this.travels)) this.travel(edge);
    else if (state === "done" && edge.state === "done" && edge.dot && !edge.running) this.gone(edge);
    edge.state = state;
  }

  arrow(edge) {
    const long = edge.line.getTotalLength(), tip = edge.line.getPointAtLength(long), back = edge.line.getPointAtLength(Math.max(0, long - 2));
    const turn = Math.atan2(tip.y - back.y, tip.x - back.x) * 180 / Math.PI;
    put(edge.head, { d: "M -2 -4.5 L 7 0 L -2 4.5 Z", transform: `translate(${tip.x} ${tip.y}) rotate(${turn})` });
  }

  dot(edge) {
    if (!edge.dot) { edge.dot = drawn("circle", { class: "model", r: 8 }); this.movers.append(edge.dot); }
    return edge.dot;
  }

  gone(edge) { if (edge.dot) edge.dot.remove(); edge.dot = null; edge.shown = 0; }

  at(edge, part) {
    const where = edge.line.getPointAtLength(edge.line.getTotalLength() * Math.min(1, part));
    put(this.dot(edge), { cx: where.x, cy: where.y });
    edge.shown = part;
  }

  /** A hand-over that is done: the model goes the rest of its way, so that even a quick one is seen. */
  travel(edge) {
    if (STILL.matches || document.hidden) return this.gone(edge);
    const from = edge.shown || 0, began = performance.now(), lasts = 1100 * (1 - from) + 150;
    edge.running = true;
    const frame = (now) => {
      const part = Math.min(1, (now - began) / lasts), eased = part < .5 ? 2 * part * part : 1 - (2 - 2 * part) ** 2 / 2;
      if (!edge.group.isConnected) return this.gone(edge);
      this.at(edge, from + (1 - from) * eased);
      if (part < 1) return requestAnimationFrame(frame);
      edge.running = false;
      this.gone(edge);
    };
    requestAnimationFrame(frame);
  }

  /** As high as what is drawn. */
  fit() {
    let top = TOP - RADIUS - 8, bottom = TOP + RADIUS + 44;
    for (const edge of this.edges.values()) {
      const box = edge.group.getBBox();
      top = Math.min(top, box.y - 4);
      bottom = Math.max(bottom, box.y + box.height + 4);
    }
    put(this.svg, { viewBox: `0 ${top} ${this.width} ${bottom - top}`, width: this.width, height: bottom - top });
    this.travels = true;
  }
}
