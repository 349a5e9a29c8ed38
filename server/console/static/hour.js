// The last hour of all members together, as they keep it: fetched once, then only what is new. Small lines of it without axes.
import { h, svg } from "./dom.js";

const HISTORY_MS = 3600000;
const WIDTH = 120;
const HEIGHT = 28;

export class Hour {
  // `names`: of series; none means all. `of`: {topic} or {group}; whole brokers without.
  constructor(view, names = [], of = {}) {
    this.view = view;
    this.names = names;
    this.of = of;
    this.times = [];
    this.series = new Map();
  }

  async refresh() {
    const after = this.times.length ? { afterMs: String(this.times.at(-1)) } : {};
    this.keep(await this.view.callFigures("GetHistory", { series: this.names, ...this.of, ...after }));
    return this;
  }

  keep({ atMs, series }) {
    const fresh = atMs.map(Number);
    const begin = fresh.length ? fresh.at(-1) - HISTORY_MS : 0;
    const before = this.times.length;
    this.times.push(...fresh);
    for (const one of series) {
      if (!this.series.has(one.name)) this.series.set(one.name, { unit: one.unit, values: new Array(before).fill(NaN) });
      this.series.get(one.name).values.push(...one.values.map(Number));
    }
    const gone = this.times.findIndex((at) => at >= begin);
    if (gone > 0) this.times.splice(0, gone);
    for (const { values } of this.series.values()) {
      while (values.length < this.times.length + Math.max(gone, 0)) values.push(NaN);
      if (gone > 0) values.splice(0, gone);
    }
  }

  valuesOf(name) {
    return this.series.get(name)?.values ?? [];
  }

  // The newest number of a series that is known.
  lastOf(name) {
    return this.valuesOf(name).findLast(Number.isFinite);
  }
}

// A line without numbers beside a figure that has them.
export function sparkline(values) {
  const known = values.filter(Number.isFinite);
  if (known.length < 2) return h("div", { class: "spark" });
  const top = Math.max(...known) || 1;
  const step = WIDTH / (values.length - 1);
  let path = "";
  let isOn = false;
  values.forEach((value, at) => {
    if (Number.isFinite(value)) {
      const y = HEIGHT - 2 - (Math.max(value, 0) / top) * (HEIGHT - 4);
      path += `${isOn ? "L" : "M"}${(at * step).toFixed(1)} ${y.toFixed(1)}`;
    }
    isOn = Number.isFinite(value);
  });
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("path", { class: "series s0", d: path, "vector-effect": "non-scaling-stroke" }),
  );
}
