// A chart of lines over time. Series differ by dash and label besides their colour. Values are read by pointer, by arrow
// keys, and in a table.
import { h, harmless, newId, replace, svg } from "./dom.js";
import { bytesText, countText, durationText } from "./format.js";
import { table } from "./table.js";

const HEIGHT = 190;
const EDGE = { top: 10, right: 12, bottom: 24, left: 74 };
const DASHES = ["", "7 4", "2 3", "10 3 2 3", "14 4", "1 5", "5 2 1 2 1 2"];
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const CLOCK_SECONDS = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const TABLE_ROWS = 60;
const SPAN_MIN_MS = 300000;
// Their halves are told in one unit.
const TIME_TOPS_S = [2, 4, 10, 20, 60, 120, 240, 600, 1200, 3600, 7200, 14400, 43200, 86400, 172800, 345600, 864000];

// A value as text, by the unit that the broker gives it.
export function valueText(value, unit) {
  if (!Number.isFinite(value)) return "unknown";
  if (unit === "bytes") return bytesText(value);
  if (unit === "bytes/s") return `${bytesText(value)}/s`;
  if (unit === "seconds" || unit === "ms") return durationText(unit === "ms" ? value : value * 1000);
  if (unit === "percent") return `${value.toFixed(1)} %`;
  const number =
    value !== 0 && Math.abs(value) < 10 ? value.toFixed(2).replace(/\.?0+$/, "") : countText(Math.round(value));
  return unit?.endsWith("/s") ? `${number}/s` : number;
}

// The least round number above all values, in steps of the unit.
function roundTop(highest, unit) {
  if (!(highest > 0)) return 1;
  if (unit === "seconds" || unit === "ms") {
    const perSecond = unit === "ms" ? 1000 : 1;
    const step = highest > perSecond && TIME_TOPS_S.find((one) => one * perSecond >= highest);
    if (step) return step * perSecond;
  }
  const base = unit?.startsWith("bytes") ? 1024 ** Math.floor(Math.log(highest) / Math.log(1024)) : 1;
  const power = 10 ** Math.floor(Math.log10(highest / base));
  const step = [1, 2, 4, 6, 8, 10].find((one) => one * power * base >= highest) ?? 10;
  return step * power * base;
}

// series: [{label, values}], times: ms; both are replaced by `update`.
export class Chart {
  constructor(title, unit) {
    this.title = title;
    this.unit = unit;
    this.times = [];
    this.series = [];
    this.at = null;
    const id = newId("chart");
    this.plot = h("div", {
      class: "plot",
      tabindex: "0",
      role: "group",
      "aria-labelledby": id,
      "aria-describedby": `${id}-how`,
      onkeydown: (event) => this.key(event),
      onpointermove: (event) => this.point(event),
      onpointerleave: () => this.read(null),
      onblur: () => this.read(null),
    });
    this.readout = h("p", { class: "readout", "aria-live": "polite" });
    this.legend = h("ul", { class: "legend" });
    this.values = h(
      "details",
      { class: "values", ontoggle: () => this.fillTable() },
      h("summary", null, "Values as a table"),
    );
    this.element = h(
      "figure",
      { class: "chart" },
      h("figcaption", { id }, title),
      this.legend,
      this.plot,
      h(
        "span",
        { class: "away", id: `${id}-how` },
        "Arrow keys read values, Home and End go to the first and the last.",
      ),
      this.readout,
      this.values,
    );
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  update(times, series) {
    const moment = this.at === null ? null : this.times[this.at];
    this.times = times;
    this.series = series;
    this.at = moment === null ? null : Math.max(times.indexOf(moment), 0);
    this.draw();
    this.fillTable();
  }

  // Of a moment. A broker that has just begun has an axis, too: the newest value is at the right.
  place(time) {
    const last = this.times.at(-1);
    const span = Math.max(last - this.times[0], SPAN_MIN_MS);
    return EDGE.left + (1 - (last - time) / span) * (this.width - EDGE.left - EDGE.right);
  }

  x(index) {
    return this.place(this.times[index]);
  }

  y(value) {
    return HEIGHT - EDGE.bottom - Math.min(value / this.top, 1) * (HEIGHT - EDGE.top - EDGE.bottom);
  }

  draw() {
    this.width = Math.max(this.plot.clientWidth, 200);
    if (!this.times.length) {
      replace(this.plot, h("p", { class: "empty" }, "No values yet."));
      return;
    }
    this.top = roundTop(Math.max(0, ...this.series.flatMap((one) => one.values.filter(Number.isFinite))), this.unit);
    this.cursor = svg("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" });
    const drawing = svg(
      "svg",
      { width: this.width, height: HEIGHT, "aria-hidden": "true", focusable: "false" },
      this.axes(),
      this.series.map((one, index) => this.line(one, index)),
      this.cursor,
    );
    this.plot.replaceChildren(drawing);
    this.drawLegend();
    this.mark();
  }

  axes() {
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const y = this.y(share * this.top);
      parts.push(svg("line", { class: "grid", x1: EDGE.left, x2: this.width - EDGE.right, y1: y, y2: y }));
      parts.push(
        svg("text", { x: EDGE.left - 6, y: y + 4, "text-anchor": "end" }, valueText(share * this.top, this.unit)),
      );
    }
    const marks = this.width < 420 ? 3 : 5;
    for (let mark = 0; mark < marks; mark += 1) {
      const last = this.times.at(-1);
      const time = last - Math.max(last - this.times[0], SPAN_MIN_MS) * (1 - mark / (marks - 1));
      const anchor = mark === 0 ? "start" : mark === marks - 1 ? "end" : "middle";
      parts.push(svg("text", { x: this.place(time), y: HEIGHT - 6, "text-anchor": anchor }, CLOCK.format(time)));
    }
    return parts;
  }

  // A value that is not known leaves a gap.
  line({ values }, index) {
    let path = "";
    let isOn = false;
    values.forEach((value, at) => {
      if (Number.isFinite(value)) path += `${isOn ? "L" : "M"}${this.x(at).toFixed(1)} ${this.y(value).toFixed(1)}`;
      isOn = Number.isFinite(value);
    });
    // A point between two gaps would have no length.
    return svg("path", {
      class: `series s${index % DASHES.length}`,
      d: path.replace(/(M[\d.]+ [\d.]+)(?=M|$)/g, "$1h3"),
      "stroke-dasharray": DASHES[index % DASHES.length],
    });
  }

  drawLegend() {
    const at = this.at ?? this.times.length - 1;
    this.legend.replaceChildren(
      ...this.series.map((one, index) => {
        const sample = svg(
          "svg",
          { width: 34, height: 10, "aria-hidden": "true" },
          svg("line", {
            class: `series s${index % DASHES.length}`,
            x1: 0,
            x2: 34,
            y1: 5,
            y2: 5,
            "stroke-dasharray": DASHES[index % DASHES.length],
          }),
        );
        const value = one.values[at];
        return h(
          "li",
          null,
          sample,
          ` ${one.label}: `,
          h("strong", null, valueText(value, this.unit)),
        );
      }),
    );
  }

  point(event) {
    if (!this.times.length) return;
    const x = event.clientX - this.plot.getBoundingClientRect().left;
    let nearest = 0;
    for (let index = 1; index < this.times.length; index += 1) {
      if (Math.abs(this.x(index) - x) < Math.abs(this.x(nearest) - x)) nearest = index;
    }
    this.read(nearest, { quietly: true });
  }

  key(event) {
    const last = this.times.length - 1;
    const now = this.at ?? last + 1;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 30, PageDown: now + 30, Home: 0, End: last }[
      event.key
    ];
    if (event.key === "Escape") this.read(null);
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.read(Math.min(Math.max(to, 0), last));
  }

  read(at, { quietly = false } = {}) {
    this.at = at;
    if (!this.times.length) return;
    this.readout.setAttribute("aria-live", quietly ? "off" : "polite");
    this.mark();
    this.drawLegend();
  }

  mark() {
    if (this.at === null) {
      this.cursor?.setAttribute("visibility", "hidden");
      this.readout.textContent = "";
      return;
    }
    const x = this.x(this.at);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    this.cursor.setAttribute("visibility", "visible");
    const values = this.series.map((one) => `${one.label} ${valueText(one.values[this.at], this.unit)}`);
    this.readout.textContent = harmless(`${CLOCK_SECONDS.format(this.times[this.at])}: ${values.join(", ")}`);
  }

  fillTable() {
    if (!this.values.open) return;
    const step = Math.max(1, Math.ceil(this.times.length / TABLE_ROWS));
    const rows = this.times
      .map((_, index) => index)
      .filter((index) => (this.times.length - 1 - index) % step === 0)
      .reverse();
    const columns = [
      { title: "Time", cell: (at) => CLOCK_SECONDS.format(this.times[at]) },
      ...this.series.map((one) => ({
        title: one.label,
        kind: "number",
        cell: (at) => valueText(one.values[at], this.unit),
      })),
    ];
    this.values.querySelector(".table-box")?.remove();
    this.values.append(table(`${this.title}, values`, columns, rows, { dense: true }));
  }
}
