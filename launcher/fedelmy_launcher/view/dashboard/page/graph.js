// Draws the sites of a run and the edges between them, laid out by the launcher: chain, ring, mesh or groups.
// Texts from sites are inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const LEAST = 0.62;
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

/** Progress of a site's own training, between 0 and 1. */
export const share = (site) => {
  if (site.state === "done" || site.evaluation || site.trained) return 1;
  const pool = site.pool.filter((member) => member.member > 0);
  const many = site.members || (pool[0] && pool[0].members) || 0;
  if (!many) return 0;
  const sum = pool.reduce((all, m) => all + (m.kept !== null ? 1 : m.epochs ? Math.min(1, m.epoch / m.epochs) : 0), 0);
  return Math.min(1, sum / many);
};

export class Graph {
  constructor(place, statusOf) {
    this.place = place;
    this.statusOf = statusOf;
    this.stations = new Map();
    this.edges = new Map();
    this.order = "";
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
    const order = JSON.stringify([view.picture, view.sites.map((site) => site.name)]);
    if (order !== this.order) this.lay(view, order);
    for (const site of view.sites) this.station(site);
    const { small } = view.picture, seen = new Set();
    this.crowded = view.links.length > 3 * view.sites.length;
    put(this.svg, { class: `${small ? "small" : ""}${this.crowded ? " crowded" : ""}` });
    for (const link of view.links) { seen.add(link.id); this.edge(link); }
    for (const [id, edge] of this.edges) if (!seen.has(id)) { edge.group.remove(); this.edges.delete(id); }
    this.fit();
  }

  lay(view, order) {
    this.place.replaceChildren();
    this.stations.clear();
    const before = this.edges;
    this.edges = new Map();
    this.order = order;
    const { width, height, small, radius } = view.picture;
    this.svg = drawn("svg", { width, height, "aria-hidden": "true" });
    this.paths = drawn("g");
    this.spots = drawn("g");
    this.movers = drawn("g");
    this.svg.append(this.paths, this.spots, this.movers);
    this.place.append(this.svg);
    this.ring = 2 * Math.PI * radius;
    for (const site of view.sites) {
      const { x, y } = site, below = y + radius;
      const parts = {
        ring: drawn("circle", { class: "ring", cx: x, cy: y, r: radius, transform: `rotate(-90 ${x} ${y})`, "stroke-dasharray": this.ring, "stroke-dashoffset": this.ring }),
        icon: drawn("text", { class: "icon", x, y: y + (small ? 3.5 : 6) }),
        name: drawn("text", { class: "name", x, y: below + (small ? 13 : 21) }),
        what: drawn("text", { class: "what", x, y: below + 38 }),
        title: drawn("title"),
      };
      parts.group = drawn("g", {}, parts.title, drawn("circle", { class: "ring-track", cx: x, cy: y, r: radius }), parts.ring, parts.icon, parts.name, parts.what);
      if (site.angle !== null) this.outwards(parts.name, site, radius);
      const most = small ? 12 : 16;
      say(parts.name, site.name.length > most ? `${site.name.slice(0, most - 1)}…` : site.name);
      this.spots.append(parts.group);
      this.stations.set(site.name, parts);
    }
    // A new layout must not repeat the animation of finished transfers.
    this.shownTimes = new Map([...before].map(([id, edge]) => [id, edge.times]));
  }

  /** On a large circle, names point outwards. */
  outwards(name, site, radius) {
    const left = site.angle > 90 || site.angle < -90, turn = left ? site.angle - 180 : site.angle;
    put(name, { x: site.x, y: site.y, dx: left ? -radius - 9 : radius + 9, dy: 4, class: `name ${left ? "to-left" : "to-right"}`, transform: `rotate(${turn} ${site.x} ${site.y})` });
  }

  station(site) {
    const parts = this.stations.get(site.name), { tone, icon, status } = this.statusOf(site);
    put(parts.group, { class: `station tone-${tone}${site.silence ? " silent" : ""}${site.skipped ? " skipped" : ""}` });
    const part = share(site), small = this.view.picture.small;
    put(parts.ring, { "stroke-dashoffset": this.ring * (1 - part), visibility: part > 0.004 ? "visible" : "hidden" });
    const percent = part > 0 && part < 1 && tone === "training" && !small ? `${Math.round(100 * part)}` : icon;
    say(parts.icon, percent);
    say(parts.what, small ? "" : status.length > 22 ? `${status.slice(0, 21)}…` : status);
    say(parts.title, `${site.name}: ${status}`);
  }

  edge(link) {
    let edge = this.edges.get(link.id);
    const fresh = !edge;
    if (fresh) {
      edge = { line: drawn("path"), head: drawn("path"), caption: drawn("text") };
      edge.group = drawn("g", {}, edge.line, edge.head, edge.caption);
      this.paths.append(edge.group);
      this.edges.set(link.id, edge);
      edge.times = this.shownTimes?.get(link.id) ?? (this.travels ? 0 : link.times);
    }
    if (edge.path !== link.path) {
      edge.path = link.path;
      put(edge.line, { d: link.path });
      put(edge.caption, { class: `caption ${link.anchor}`, x: link.x, y: link.y });
      this.arrow(edge);
    }
    const deliver = link.carries === "deliver";
    const state = link.problem ? "trouble" : ["moving", "done"].includes(link.state) ? link.state : "waiting";
    put(edge.line, { class: `edge ${state}${deliver ? " deliver" : ""}` });
    put(edge.head, { class: `head-${deliver && state === "done" ? "deliver" : state}` });
    say(edge.caption, link.caption && !this.crowded && !this.view.picture.small && link.caption.length * 6.2 < link.room ? link.caption : "");
    if (state === "moving") this.at(edge, link.total ? link.bytes / link.total : 0);
    else if (link.times > edge.times) this.travel(edge);
    else if (edge.dot && !edge.running) this.gone(edge);
    edge.times = link.times;
  }

  arrow(edge) {
    const long = edge.line.getTotalLength(), tip = edge.line.getPointAtLength(long), back = edge.line.getPointAtLength(Math.max(0, long - 2));
    const turn = Math.atan2(tip.y - back.y, tip.x - back.x) * 180 / Math.PI;
    put(edge.head, { d: this.crowded ? "M 1 -2.5 L 6 0 L 1 2.5 Z" : "M -2 -4.5 L 7 0 L -2 4.5 Z", transform: `translate(${tip.x} ${tip.y}) rotate(${turn})` });
  }

  dot(edge) {
    if (!edge.dot) { edge.dot = drawn("circle", { class: "model", r: this.view.picture.small ? 5 : 8 }); this.movers.append(edge.dot); }
    return edge.dot;
  }

  gone(edge) { if (edge.dot) edge.dot.remove(); edge.dot = null; edge.shown = 0; }

  at(edge, part) {
    const where = edge.line.getPointAtLength(edge.line.getTotalLength() * Math.min(1, part));
    put(this.dot(edge), { cx: where.x, cy: where.y });
    edge.shown = part;
  }

  /** Animate the rest of a finished transfer, so that even a fast one is visible. */
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

  /** Fit the width; scroll rather than shrink below a readable size. */
  fit() {
    const { width, height } = this.view.picture, scale = Math.max(LEAST, Math.min(1, this.place.clientWidth / width));
    let top = 0, bottom = height;
    for (const edge of this.edges.values()) {
      const box = edge.group.getBBox();
      top = Math.min(top, box.y - 4);
      bottom = Math.max(bottom, box.y + box.height + 4);
    }
    put(this.svg, { viewBox: `0 ${top} ${width} ${bottom - top}`, width: width * scale, height: (bottom - top) * scale });
    this.travels = true;
  }
}
